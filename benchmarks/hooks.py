"""What hooks cost: two runs in one process, one with three hooks that read, in alternating chunks.

    OMP_NUM_THREADS=1 python benchmarks/hooks.py --write

Each pair of chunks gives a ratio; the figure is the mean of their logarithms, with the 95 % interval of that mean.
"""

import argparse
import datetime
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import ours  # first: it finds the folder of `task`
import torch
from parts import table
from speed import machine
from task import WORKS, Work

import rltrainer as rl

CHUNKS = {"ppo-256x4": 8, "a2c": 5, "dqn": 2, "sac": 1}
"""Collected chunks of the work in one timed chunk, by kind of run."""
OPTIONS = {"max_epochs": 1_000_000, "seed": 1, "show_progress": False, "verbose": False}


def make(work: Work, options: dict[str, Any], hooks: list[rl.TrainerHook]) -> Any:
    """Return what trains for so many steps, after the warm-up."""
    rl.seed(1)
    envs = rl.make_vec(work.env_id, num_envs=work.num_envs, seed=1)
    trainer = ours.make_trainer(work, envs, OPTIONS | {"epoch_num_steps": work.chunk, "hooks": hooks} | options)
    advance = ours.training(trainer, work.chunk)
    advance(work.random_steps + work.chunk)
    return advance


def reading_hooks(loss: str) -> list[rl.TrainerHook]:
    """Return hooks that only read, none of which ever ends the run."""
    return [rl.LogScalar("reward"), rl.EarlyStopping(loss, mode="min", patience=1_000_000), rl.LogTiming()]


def cost(kind: str, num_chunks: int, options: dict[str, Any]) -> tuple[float, float, float]:
    """Return the time with hooks over that without, and the ends of its 95 % interval."""
    work = WORKS[kind]
    loss = "critic_loss" if kind == "sac" else "loss"
    runs = {"with": make(work, options, reading_hooks(loss)), "without": make(work, options, [])}
    num_steps = work.chunk * CHUNKS[kind]
    logs = []
    for i in range(num_chunks):
        seconds = {}
        for name in sorted(runs, reverse=bool(i % 2)):
            started = time.perf_counter()
            runs[name](num_steps)
            seconds[name] = time.perf_counter() - started
        logs.append(math.log(seconds["with"] / seconds["without"]))
    mean, error = statistics.mean(logs), 2.09 * statistics.stdev(logs) / math.sqrt(len(logs))  # t of 19 degrees
    return math.exp(mean), math.exp(mean - error), math.exp(mean + error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/measurements/hooks.md")
    parser.add_argument("--chunks", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for kind in CHUNKS:
        for compile_ in ("false", "true"):
            ratio, low, high = cost(kind, args.chunks, ours.run_options(compile_, None))
            how = "compiled" if compile_ == "true" else "uncompiled"
            rows.append([f"{kind}, {how}", f"{ratio - 1:+.1%}", f"{low - 1:+.1%} to {high - 1:+.1%}"])
            print(rows[-1], file=sys.stderr)
    command = f"OMP_NUM_THREADS=1 python benchmarks/hooks.py {' '.join(sys.argv[1:])}"
    what = f"`LogScalar`, `EarlyStopping` and `LogTiming` beside no hooks, {args.chunks} alternating chunks of each"
    where = f"one thread, torch {torch.__version__}, {machine()}"
    head = f"Written by `{command}` on {datetime.date.today()}: {what} in one process; {where}."
    lines = ["# What hooks cost", "", head, "", *table(["run", "more time", "95 % interval"], rows)]
    text = "\n".join(lines)
    print(text)
    if args.write:
        (Path(__file__).resolve().parents[1] / "docs/measurements/hooks.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
