"""What checkpoints cost: bytes, milliseconds, memory of one, and the slowdown of a run that saves every 10,000 steps.

    OMP_NUM_THREADS=1 python benchmarks/checkpoints.py --write      (--quick: small sizes, to see that it runs)

One of a small run (PPO on CartPole), of a full buffer of 1,000,000 transitions of 17 + 6 floats, and of a large run
(SAC with such a buffer): the first, and those after 1 % new transitions each. Bytes are those of new files. Training
waits while a save is made. Memory on top is the peak of resident memory during the save less that before.

What a checkpoint costs a run is the difference of two runs in one process, in alternating chunks, of which one saves
in the middle of its chunk: its mean, and the 95 % interval of that mean. The slowdown is that difference beside the
time of 10,000 env steps. A chunk has as many, or fewer where they would take minutes and hide milliseconds in their
noise.
"""

import argparse
import datetime
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ours  # first: it finds the folder of `task`
import task
import torch
from parts import table
from speed import machine
from task import WORKS

import rltrainer as rl
from rltrainer.checkpoint import CheckpointStore
from rltrainer.checkpoint.store import live_state
from rltrainer.state.codec import to_state
from rltrainer.types import State

OPTIONS = {"max_epochs": 1_000_000, "seed": 1, "show_progress": False, "verbose": False}
SAVE_INTERVAL = 10_000
RUNS = {"ppo-256x4": 10_000, "dqn": 2000, "sac": 1000}
"""Runs, and the env steps of a chunk."""


@dataclass
class Cost:
    """What one save takes."""

    nbytes: int
    seconds: float
    memory: int


def states(trainer: Any) -> dict[str, Any]:
    """Return what a checkpoint of a run holds."""
    parts = {"algorithm": trainer.algorithm, **trainer.params.parts()}
    trainer.state.params = {}
    return {name: live_state(part) for name, part in parts.items()} | {"trainer": to_state(trainer.state)}


def make_trainer(kind: str, num_transitions: int = 0) -> Any:
    """Return a trainer that has begun; off policy with a buffer that is full of this many random transitions."""
    work = WORKS[kind]
    rl.seed(1)
    envs = rl.make_vec(work.env_id, num_envs=work.num_envs, seed=1)
    task.REPLAY_SIZE = num_transitions or task.REPLAY_SIZE
    trainer = ours.make_trainer(work, envs, OPTIONS | {"epoch_num_steps": work.chunk} | ours.run_options("false", None))
    trainer.reset()
    if num_transitions:
        add(trainer.params.buffer, num_transitions)
    trainer.execute_epoch()
    return trainer


def add(buffer: Any, num_transitions: int) -> None:
    """Add random transitions in episodes of 1000 steps."""
    rng, (obs_size,), actions = np.random.default_rng(0), buffer.observation_space.shape, buffer.action_space
    for start in range(0, num_transitions, 10_000):
        size = min(10_000, num_transitions - start)
        ended = np.arange(size) % 1000 == 999
        obs = rng.standard_normal((size + 1, obs_size), np.float32)
        columns = {
            "observations": obs[:-1],
            "actions": rng.integers(0, actions.n, size) if hasattr(actions, "n") else np.zeros((size, *actions.shape)),
            "rewards": rng.standard_normal(size, np.float32),
            "terminations": np.zeros(size, np.bool_),
            "truncations": ended,
            "next_observations": obs[1:],
        }
        spaces = {"observation_space": buffer.observation_space, "action_space": buffer.action_space}
        part = rl.ReplayBuffer.from_arrays(**columns, **spaces)
        buffer.extend(part)


def cost(store: CheckpointStore, capture: Callable[[], State], step: int) -> Cost:
    """Save once, and return what it took."""
    before = files(store.folder)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    resident = memory("VmRSS")
    started = time.perf_counter()
    store.save(capture(), step, None)
    seconds = time.perf_counter() - started
    peak = memory("VmHWM")
    nbytes = sum(size for path, size in files(store.folder).items() if path not in before)
    return Cost(nbytes, seconds, max(peak - resident, 0))


def files(directory: Path) -> dict[Path, int]:
    """Return the sizes of all files."""
    return {path: path.stat().st_size for path in directory.rglob("*") if path.is_file()}


def memory(name: str) -> int:
    """Return a number of bytes that the system knows of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def costs_of_one(
    name: str, capture: Callable[[], State], go_on: Callable[[], None], nbytes: int, num_saves: int
) -> list[list[str]]:
    """Return the rows of what is saved again and again: its first checkpoint, and those after it.

    Args:
        name: of the rows.
        capture: returns what a checkpoint holds.
        go_on: changes it.
        nbytes: of the data of which the bytes are a share.
        num_saves: checkpoints after the first.
    """
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = CheckpointStore(Path(folder) / "run", keep_last=3, keep_best=0)
        store.open()
        first = cost(store, capture, 0)
        later = []
        for step in range(1, num_saves + 1):
            go_on()
            later.append(cost(store, capture, step))
        store.close()
    mean = Cost(
        round(statistics.mean(each.nbytes for each in later)),
        statistics.mean(each.seconds for each in later),
        max(each.memory for each in later),
    )
    worst = max(each.seconds for each in later)
    nbytes = nbytes or first.nbytes
    return [
        row(f"{name}, the first", first, nbytes, first.seconds),
        row(f"{name}, mean of {num_saves} after it", mean, nbytes, worst),
    ]


def costs(num_transitions: int, num_saves: int) -> list[list[str]]:
    """Return the rows of a small run, of a large buffer by itself, and of a large run."""
    small, large = make_trainer("ppo-256x4"), make_trainer("sac", num_transitions)
    spaces = [gym.spaces.Box(-1.0, 1.0, (size,), np.float32) for size in (task.OBS_SIZE, task.ACTION_SIZE)]
    buffer = rl.ReplayBuffer(num_transitions, *spaces)
    add(buffer, num_transitions)

    def go_on() -> None:
        add(large.params.buffer, num_transitions // 100)
        large.execute_epoch()

    size = f"{num_transitions:,} transitions"
    rows = costs_of_one("PPO on CartPole", lambda: states(small), small.execute_epoch, 0, num_saves)
    rows += costs_of_one(
        f"a buffer of {size}, 1 % new", lambda: {"buffer": live_state(buffer)},
        lambda: add(buffer, num_transitions // 100), buffer.nbytes, num_saves,
    )  # fmt: skip
    nbytes = large.params.buffer.nbytes
    return rows + costs_of_one(f"SAC with {size}, 1 % new", lambda: states(large), go_on, nbytes, num_saves)


def row(name: str, each: Cost, whole: int, worst: float) -> list[str]:
    """Return a row of the table."""
    share = f"{each.nbytes / whole:.1%}"
    times = [f"{1000 * seconds:.1f}" for seconds in (each.seconds, worst)]
    return [name, f"{each.nbytes / 1e6:.2f}", share, *times, f"{each.memory / 1e6:.1f}"]


def slowdown(kind: str, num_transitions: int, num_chunks: int, chunk: int) -> list[str]:
    """Return the row of a run that saves once in each chunk, beside one that does not."""
    runs = {name: make_trainer(kind, num_transitions) for name in ("with", "without")}
    epochs = max(round(chunk / WORKS[kind].chunk), 1)
    differences, plain = [], []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = CheckpointStore(Path(folder) / "run", keep_last=3, keep_best=0)
        store.open()
        store.save(states(runs["with"]), 0, None)
        for i in range(num_chunks):
            seconds = {}
            for name in sorted(runs, reverse=bool(i % 2)):
                started = time.perf_counter()
                for epoch in range(epochs):
                    runs[name].execute_epoch()
                    if name == "with" and epoch == epochs // 2:
                        store.save(states(runs[name]), i + 1, None)
                seconds[name] = time.perf_counter() - started
            differences.append(seconds["with"] - seconds["without"])
            plain.append(seconds["without"])
        store.close()
    seconds = statistics.mean(plain) * SAVE_INTERVAL / (epochs * WORKS[kind].chunk)
    mean, error = statistics.mean(differences), half_interval(differences)
    shares = [f"{100 * part / seconds:+.2f} %" for part in (mean, mean - error, mean + error)]
    return [
        kind, f"{epochs * WORKS[kind].chunk:,}", f"{1000 * mean:+.0f} ± {1000 * error:.0f}", f"{seconds:.1f}",
        shares[0], f"{shares[1]} to {shares[2]}",
    ]  # fmt: skip


def half_interval(values: list[float]) -> float:
    """Return half of the 95 % interval of a mean; 2.09 is Student's t of 19 degrees of freedom."""
    return 2.09 * statistics.stdev(values) / math.sqrt(len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/measurements/checkpoints.md")
    parser.add_argument("--quick", action="store_true", help="small sizes and few chunks")
    parser.add_argument("--chunks", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    size, chunks = (20_000, 2) if args.quick else (1_000_000, args.chunks)
    num_saves = 3 if args.quick else 10
    rows = costs(size, num_saves)
    slow = [
        slowdown(kind, 0 if kind.startswith("ppo") else size, chunks, 500 if args.quick else chunk)
        for kind, chunk in RUNS.items()
    ]
    command = f"OMP_NUM_THREADS=1 python benchmarks/checkpoints.py {' '.join(sys.argv[1:])}"
    where = f"one thread, torch {torch.__version__}, {machine()}"
    text = "\n".join([
        "# What checkpoints cost", "",
        f"Written by `{command}` on {datetime.date.today()}; {where}.", "",
        *table(["checkpoint", "MB", "of the data", "ms", "at worst", "MB on top"], rows),
        "", f"Saving every {SAVE_INTERVAL:,} env steps, beside a run that does not, {chunks} alternating chunks:", "",
        *table(
            ["run", "env steps a chunk", "ms a checkpoint", f"s for {SAVE_INTERVAL:,} env steps", "more time", "95 %"],
            slow,
        ),
    ])  # fmt: skip
    print(text)
    if args.write:
        (Path(__file__).resolve().parents[1] / "docs/measurements/checkpoints.md").write_text(
            text + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
