"""Speed on a CUDA device: gradient steps per second of each mode, and whole runs, both beside peers.

    python benchmarks/gpu.py --write
    python benchmarks/gpu.py --cpu --only sac        # shows that a row runs, where there is no GPU

A gradient step is what a trainer does for one: off policy a batch is sampled from a buffer on the device, on policy a
rollout there is processed, and used once or four times. Its data is made up. Our modes take turns in this process;
peers and whole runs (`gpu_runs.py`) are processes of their own. Each figure is the median of the runs.
"""

import argparse
import dataclasses
import datetime
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_runs
import gymnasium as gym
import numpy as np
import torch
from speed import machine
from torch.profiler import ProfilerActivity, profile

import rltrainer as rl

HALF_CHEETAH = (gym.spaces.Box(-np.inf, np.inf, (17,), np.float32), gym.spaces.Box(-1, 1, (6,), np.float32))
CARTPOLE = (gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2))
NUM_ENVS = 8
"""Of the rollout of the on-policy case."""
NUM_WARM_UPS = 20
"""Updates before anything is timed: compiled, and recorded."""

MODES = {
    "eager": rl.RuntimeParams(compile=False, cuda_graph=False),
    "CUDA graph": rl.RuntimeParams(compile=False),
    "compiled": rl.RuntimeParams(compile=True, cuda_graph=False),
    "compiled, CUDA graph": rl.RuntimeParams(compile=True),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """What is trained: an algorithm, its policy, their sizes, and how many steps per second are aimed at."""

    name: str
    algorithm: type[Any]
    policy: type[Any]
    spaces: tuple[Any, Any]
    hidden_sizes: tuple[int, ...]
    batch_size: int
    goal: int | None = None
    at_once: int = 1
    """Gradient steps of an update."""

    @property
    def key(self) -> str:
        """Its name on the command line."""
        return f"{self.name.lower()}-{self.hidden_sizes[0]}-{self.at_once}"

    @property
    def repeat(self) -> int:
        """The number of times that each cell of a rollout is used."""
        return 4 if self.at_once > 1 else 1

    @property
    def work(self) -> str:
        """The work of peers that is the same, if they have one."""
        is_theirs = (self.name, self.batch_size) != ("DQN", 256)
        return f"{self.name.lower()}-updates-{self.at_once}" if is_theirs else ""


CASES = (
    *(
        Case(*case, at_once=at_once)
        for case in (
            ("PPO", rl.PPO, rl.ActorCritic, CARTPOLE, (64, 64), 256, 7000),
            ("DQN", rl.DQN, rl.QNetwork, CARTPOLE, (64, 64), 64, 12_000),
            ("DQN", rl.DQN, rl.QNetwork, CARTPOLE, (256, 256), 256, 8000),
            ("TD3", rl.TD3, rl.DeterministicActorCritic, HALF_CHEETAH, (256, 256), 256, 6000),
            ("SAC", rl.SAC, rl.SquashedActorCritic, HALF_CHEETAH, (256, 256), 256, 5000),
            ("IQL", rl.IQL, rl.GaussianActorCritic, HALF_CHEETAH, (256, 256), 256, 5000),
        )
        for at_once in (32, 1)
    ),
)
PROFILED = Case("SAC", rl.SAC, rl.SquashedActorCritic, HALF_CHEETAH, (256, 256), 256)
OFFLINE = Case("IQL", rl.IQL, rl.GaussianActorCritic, HALF_CHEETAH, (256, 256), 256, 3000)
"""Trained by an `OfflineTrainer` with the settings that it has by default."""
OFFLINE_KEY, KERNELS_KEY = "iql-offline", "kernels"
KEYS = (*gpu_runs.RUNS, *(case.key for case in CASES), OFFLINE_KEY, KERNELS_KEY)
"""The rows, as `--only` takes them."""


def modes(device: str) -> list[str]:
    """Return the modes that there are on a device."""
    return [mode for mode in MODES if device != "cpu" or "graph" not in mode]


def make(case: Case, mode: str, device: str) -> tuple[Any, Callable[[], int]]:
    """Return an algorithm, and what makes an update of it and returns how many gradient steps it took."""
    rl.seed(1)
    policy = case.policy(*case.spaces, hidden_sizes=case.hidden_sizes).to(device)
    algorithm = case.algorithm(policy)
    algorithm.seed(1)
    algorithm.attach(rl.UpdatePlan(runtime=MODES[mode]))
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        data = rollout(policy, case, device)
        return algorithm, lambda: algorithm.update(data, case.batch_size, case.repeat).num_gradient_steps
    buffer = filled_buffer(case, device)
    return algorithm, lambda: algorithm.update_from(buffer, case.batch_size, case.at_once).num_gradient_steps


def offline_by_default(num_steps: int, device: str) -> str:
    """Return the gradient steps per second of an offline run by the defaults, recording included, as text."""
    rl.seed(1)
    algorithm = OFFLINE.algorithm(OFFLINE.policy(*OFFLINE.spaces, hidden_sizes=OFFLINE.hidden_sizes).to(device))
    params = rl.OfflineTrainerParams(
        buffer=filled_buffer(OFFLINE, device), batch_size=OFFLINE.batch_size, epoch_num_steps=num_steps, max_epochs=1,
        verbose=False, show_progress=False, seed=1,
    )  # fmt: skip
    wait(device)
    started = time.perf_counter()
    algorithm.run_training(params)
    wait(device)
    return f"{num_steps / (time.perf_counter() - started):,.0f}"


def has_fallen_back(algorithm: Any, mode: str) -> bool:
    """Return whether steps did not run as the mode says; a warning has said why."""
    return algorithm.is_compiled is not ("compiled" in mode) or algorithm.has_cuda_graph is not ("graph" in mode)


def rollout(policy: Any, case: Case, device: str) -> rl.Rollout:
    """Return made-up data of the on-policy case, enough for the gradient steps of one update."""
    shape = (case.batch_size * case.at_once // case.repeat // NUM_ENVS, NUM_ENVS)
    no = torch.zeros(shape, dtype=torch.bool, device=device)
    size = policy.observation_space.shape
    return rl.Rollout(
        obs=torch.randn(*shape, *size, device=device), action=torch.randint(0, 2, shape, device=device),
        reward=torch.ones(shape, device=device), terminated=no, truncated=no, valid=~no,
        last_obs=torch.randn(NUM_ENVS, *size, device=device), final_obs=torch.zeros(0, *size, device=device),
        final_index=torch.zeros(0, dtype=torch.int64, device=device), starts=no[0],
    )  # fmt: skip


def filled_buffer(case: Case, device: str) -> rl.ReplayBuffer:
    """Return a buffer of made-up transitions on the device; one in a hundred ends an episode."""
    num_rows, (obs_space, action_space) = 10_000, case.spaces
    rng = np.random.default_rng(1)
    is_discrete = isinstance(action_space, gym.spaces.Discrete)
    ends = np.arange(num_rows) % 100 == 99
    return rl.ReplayBuffer.from_arrays(
        observations=rng.standard_normal((num_rows, *obs_space.shape), np.float32),
        actions=rng.integers(0, 2, num_rows) if is_discrete
        else rng.uniform(-1, 1, (num_rows, *action_space.shape)).astype(np.float32),
        rewards=rng.standard_normal(num_rows, np.float32), terminations=ends, truncations=np.zeros(num_rows, bool),
        observation_space=obs_space, action_space=action_space, device=device, seed=1,
    )  # fmt: skip


def wait(device: str) -> None:
    """Wait until the device has done what it was told."""
    if device != "cpu":
        torch.cuda.synchronize()


def steps_per_second(update: Callable[[], int], num_steps: int, device: str) -> float:
    """Time updates until so many gradient steps are taken."""
    wait(device)
    started, taken = time.perf_counter(), 0
    while taken < num_steps:
        taken += update()
    wait(device)
    return taken / (time.perf_counter() - started)


def measure(case: Case, num_steps: int, num_runs: int, device: str) -> list[str]:
    """Return the median of each mode, as text; of no runs, that there is none."""
    if not num_runs:
        return [gpu_runs.NOT_MEASURED] * len(modes(device))
    made = {mode: make(case, mode, device) for mode in modes(device)}
    for _, update in made.values():
        for _ in range(min(NUM_WARM_UPS, num_steps)):
            update()
    runs = [{mode: steps_per_second(made[mode][1], num_steps, device) for mode in made} for _ in range(num_runs)]
    medians = {mode: f"{statistics.median(run[mode] for run in runs):,.0f}" for mode in made}
    return ["fell back" if has_fallen_back(made[mode][0], mode) else medians[mode] for mode in made]


def kernels(mode: str, device: str) -> tuple[int, float]:
    """Return how many kernels the profiled update runs, on the CPU operators, and their time in us."""
    _, update = make(PROFILED, mode, device)
    for _ in range(5):
        update()
    wait(device)
    on_host = device == "cpu"
    with profile(activities=[ProfilerActivity.CPU if on_host else ProfilerActivity.CUDA]) as profiled:
        update()
        wait(device)
    events = profiled.key_averages()
    times = [(e.count, e.self_cpu_time_total if on_host else e.self_device_time_total) for e in events]
    return sum(count for count, us in times if us > 0), sum(us for _, us in times)


def report(args: argparse.Namespace, device: str) -> list[str]:
    """Measure what is asked for and return the lines of the report."""
    shown = modes(device)
    name = "CPU" if device == "cpu" else torch.cuda.get_device_name()
    stamp = f"{datetime.date.today()}, {name}, torch {torch.__version__}, {args.runs} runs"
    lines = [
        "# Speed on a GPU", "",
        "Printed by `python benchmarks/gpu.py --write`; with `--only sac` it measures one row, and the others stay. "
        f"Medians; a cell is empty where a program cannot do the row. Last on: {machine()}.", "",
        "## Whole runs", "", *gpu_runs.head(),
    ]  # fmt: skip
    # A row that was not asked for says that it was not measured.
    num_runs = {key: args.runs if key in args.only else 0 for key in KEYS}
    for key in gpu_runs.RUNS:
        lines.append(gpu_runs.row(key, num_runs[key], device, stamp, not args.ours))
        print(lines[-1], flush=True)
    peers = [gpu_runs.PROGRAMS[key].title for key in gpu_runs.UPDATE_PEERS]
    columns = [*shown, *peers, "goal", "measured"]
    lines += [
        "", "## Gradient steps", "", "Per second, sampling included.", "",
        f"| | networks | batch | at once | {' | '.join(columns)} |", f"|---|---|---|---|{'---|' * len(columns)}",
    ]  # fmt: skip
    for case in CASES:
        figures = measure(case, args.steps, num_runs[case.key], device)
        figures += gpu_runs.peers_of(case.work, args.steps, 0 if args.ours else num_runs[case.key], device)
        sizes, goal = "-".join(map(str, case.hidden_sizes)), "" if case.goal is None else f"{case.goal:,}"
        measured = f"{stamp} of {args.steps:,} steps" if num_runs[case.key] else ""
        cells = [case.name, sizes, str(case.batch_size), str(case.at_once), *figures, goal, measured]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    figure = offline_by_default(min(args.steps, 9000), device) if num_runs[OFFLINE_KEY] else ""
    figure = f"{figure} ({stamp})" if figure else gpu_runs.NOT_MEASURED
    text = f"{OFFLINE.name} by an offline trainer with its defaults, buffer on the device, recording included"
    lines += ["", f"{text}, gradient steps per second: {figure}; aimed at: {OFFLINE.goal:,}."]
    lines += [
        "", f"## One update of {PROFILED.name}", "",
        "What a profiler saw, sampling included. No way of launching kernels is faster than their time.", "",
        "| | kernels | their time in us | so at most steps/s | measured |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for mode in shown:
        if not num_runs[KERNELS_KEY]:
            lines.append(f"| {mode} | {gpu_runs.NOT_MEASURED} | | | |")
            continue
        count, us = kernels(mode, device)
        lines.append(f"| {mode} | {count} | {us:,.0f} | {f'{1e6 / us:,.0f}' if us else 'nothing seen'} | {stamp} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/measurements/gpu.md; other rows stay")
    parser.add_argument(
        "--cpu", action="store_true", help="only show that it runs: on the CPU, once, few steps, peers that are there"
    )
    parser.add_argument("--only", action="append", choices=KEYS, help="only these rows; may be repeated")
    parser.add_argument("--ours", action="store_true", help="without peers")
    parser.add_argument("--steps", type=int, help="gradient steps of a run, at least; 5000, with --cpu 20")
    parser.add_argument("--runs", type=int, help="5, with --cpu 1")
    args = parser.parse_args()
    if not args.cpu and not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py: no CUDA device was found. Pass --cpu to see the program run.")
    if args.cpu and args.write:
        raise SystemExit("benchmarks/gpu.py: --write is for figures of a CUDA device.")
    args.steps, args.runs = args.steps or (20 if args.cpu else 5000), args.runs or (1 if args.cpu else 5)
    args.only = args.only or list(KEYS)
    torch.set_num_threads(1)
    page = Path(__file__).resolve().parents[1] / "docs/measurements/gpu.md"
    lines = report(args, "cpu" if args.cpu else "cuda")
    if args.write:
        lines = gpu_runs.merged(lines, page.read_text(encoding="utf-8").splitlines())
        page.write_text("\n".join(lines), encoding="utf-8")
    print("", *lines, sep="\n")


if __name__ == "__main__":
    main()
