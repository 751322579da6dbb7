"""Training in several processes beside one: env steps per second of the same program, and what an exchange costs.

    python benchmarks/ranks.py --write

Each run is a new program: one process on one core, one process with the threads that "auto" takes, or two processes
under torchrun. They take turns, and the figure is the median.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from parts import table
from speed import machine

import rltrainer as rl
from rltrainer.ranks.torch_ranks import process_ranks

HERE = Path(__file__).resolve()
PPO = {"kind": "ppo", "collect": 2048, "repeat": 10, "num_updates": 12, "hidden_sizes": (64, 64)}
LARGE = PPO | {"hidden_sizes": (256, 256)}
SAC = {"kind": "sac", "num_steps": 800, "hidden_sizes": (256, 256)}
CASES: dict[str, dict[str, Any]] = {
    "PPO, 2,048 x 10, batch 64": PPO | {"batch_size": 64},
    "PPO, 2,048 x 10, batch 1,024": PPO | {"batch_size": 1024},
    "PPO, 2,048 x 10, batch 1,024, 32 envs": PPO | {"batch_size": 1024, "num_envs": 32},
    "PPO, 16,384 x 10, batch 4,096, networks 256-256": LARGE | {"batch_size": 4096, "collect": 16384, "num_updates": 2},
    "SAC, batch 256": SAC | {"batch_size": 256, "num_steps": 400},
    "SAC, batch 1,024": SAC | {"batch_size": 1024, "num_steps": 160},
    "SAC, batch 4,096": SAC | {"batch_size": 4096, "num_steps": 64},
}
"""HalfCheetah-v5 in 8 envs; off policy a gradient step for each env step. The first epoch of each run is left out."""
COMPILED = ("PPO, 2,048", "SAC, batch 256", "SAC, batch 1,024")
"""Beginnings of the names of cases that are also run compiled, as "auto" does in long runs."""
SIZES = (16, 1_000, 10_000, 100_000, 1_000_000)
"""Numbers of float32 in an exchange."""


def train(case: dict[str, Any], compile_: Any) -> float:
    """Return the env steps per second of a run, without its first epoch."""
    rl.seed(1)
    num_envs = case.get("num_envs", 8)
    envs = rl.make_vec("HalfCheetah-v5", num_envs=num_envs)
    common: dict[str, Any] = {
        "verbose": False, "show_progress": False, "seed": 1, "runtime": rl.RuntimeParams(compile=compile_),
    }  # fmt: skip
    algorithm: Any
    if case["kind"] == "ppo":
        algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=case["hidden_sizes"]))
        params: Any = rl.OnPolicyTrainerParams(
            training_collector=rl.Collector(algorithm.policy, envs), max_epochs=2,
            epoch_num_steps=case["collect"] * case["num_updates"], collection_step_num_env_steps=case["collect"],
            batch_size=case["batch_size"], update_step_num_repetitions=case["repeat"], **common,
        )  # fmt: skip
    else:
        algorithm = rl.SAC(rl.SquashedActorCritic.for_envs(envs, hidden_sizes=case["hidden_sizes"]))
        buffer = rl.ReplayBuffer(100_000, envs.single_observation_space, envs.single_action_space, num_envs=num_envs)
        params = rl.OffPolicyTrainerParams(
            training_collector=rl.Collector(algorithm.policy, envs, buffer), max_epochs=2,
            epoch_num_steps=case["num_steps"], collection_step_num_env_steps=8, batch_size=case["batch_size"], **common,
        )  # fmt: skip
    info = params.create_trainer(algorithm).run()
    last = info.epochs[-1]
    return float(last.collect_stats.num_env_steps / last.timing.total)


def exchange() -> dict[str, dict[int, float]]:
    """Return the microseconds of a sum over ranks by its size, through shared memory and by gloo."""
    ranks: Any = process_ranks()
    found = {"shared memory": _microseconds(ranks)}
    ranks._connections.board = None
    return found | {"gloo": _microseconds(ranks)}


def _microseconds(ranks: Any) -> dict[int, float]:
    found = {}
    for size in SIZES:
        x = torch.ones(size)
        for _ in range(20):
            ranks.sum(x)
        seconds = []
        for _ in range(100):
            began = time.perf_counter()
            ranks.sum(x)
            seconds.append(time.perf_counter() - began)
        found[size] = statistics.median(seconds) * 1e6
    return found


def run(name: str, num_ranks: int, num_threads: int | None, compile_: str) -> Any:
    """Return what a new program measures, in so many processes."""
    command = [sys.executable, str(HERE), "--child", name, "--compile", compile_]
    if num_ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
        command = [sys.executable, *launcher, *command[1:]]
    environment = os.environ | ({} if num_threads is None else {"OMP_NUM_THREADS": str(num_threads)})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} with {num_ranks} processes failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def spread(values: list[float]) -> str:
    """Return median and range as text."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="only these")
    parser.add_argument("--compile", choices=("true", "false"), help="of gradient steps; both by default")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write docs/measurements/ranks.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        found: Any = exchange() if args.child == "exchange" else train(CASES[args.child], args.compile == "true")
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(found), flush=True)
        return
    ways = {"one core": (1, 1), 'one process, "auto"': (1, None), "two processes": (2, 1)}
    rows = []
    chosen = [(case, is_compiled) for case in args.case or CASES for is_compiled in ("false", "true")]
    for case, is_compiled in chosen:
        if is_compiled != (args.compile or is_compiled) or (is_compiled == "true" and not case.startswith(COMPILED)):
            continue
        speeds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(args.runs):
            for way, (num_ranks, num_threads) in ways.items():
                speeds[way].append(run(case, num_ranks, num_threads, is_compiled))
        one, auto, two = (statistics.median(found) for found in speeds.values())
        name = f"{case}, compiled" if is_compiled == "true" else case
        rows.append([name, *map(spread, speeds.values()), f"{two / one:.2f}", f"{two / auto:.2f}"])
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    costs = run("exchange", 2, 1, "false")
    how = f"`python {' '.join(['benchmarks/ranks.py', *sys.argv[1:]])}` on {datetime.date.today()}"
    head = (
        f"Written by {how}: env steps per second, collection and update together, median (range) of {args.runs} runs "
    )
    head += f"that took turns; torch {torch.__version__}, {machine()}. HalfCheetah-v5 in 8 envs, one thread each."
    lines = ["# Several processes beside one", "", head, ""]
    lines += table(["run", *ways, "two / one core", 'two / "auto"'], rows)
    lines += ["", "## One exchange", "", "A sum over two processes, median of 100, in microseconds.", ""]
    sizes = [[f"{size:,}", *(f"{found[str(size)]:,.0f}" for found in costs.values())] for size in SIZES]
    lines += table(["float32 numbers", *costs], sizes)
    text = "\n".join([*lines, ""])
    print(text)
    if args.write:
        (HERE.parents[1] / "docs/measurements/ranks.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
