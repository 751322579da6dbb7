"""Where our own time goes: the parts of a run, and how cost grows with envs, batch, network and buffer.

The parts are timed from outside: methods of the objects of one run are wrapped in a clock. Short runs, for finding what
to make faster; what is claimed is in `speed.py`.
"""

import argparse
import datetime
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ours  # first: it finds the folder of `task`
import torch
from speed import machine
from task import WORKS, Work

import rltrainer as rl

PARTS = ("env", "inference", "buffer", "update", "the rest")
OPTIONS = {"max_epochs": 1_000_000, "seed": 1, "show_progress": False, "verbose": False}


class Clock:
    """Sums up the seconds spent in wrapped methods, by part; a part inside another counts there only once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._is_running = False

    def wrap(self, part: str, owner: Any, *names: str) -> None:
        """Replace methods of one object by timed ones."""
        for name in names:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._is_running:
                return method(*args, **kwargs)
            self._is_running = True
            started = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - started
                self._is_running = False

        return timed


@dataclass
class Split:
    """A run's microseconds per env step by part, and per gradient step."""

    parts: dict[str, float]
    gradient_step: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def split(work: Work, steps: int, options: dict[str, Any]) -> Split:
    """Train for about so many env steps after one chunk of warm-up, and say where the time went."""
    rl.seed(1)
    envs = rl.make_vec(work.env_id, num_envs=work.num_envs, seed=1)
    trainer = ours.make_trainer(work, envs, OPTIONS | {"epoch_num_steps": work.chunk} | options)
    advance = ours.training(trainer, work.chunk)
    advance(work.random_steps + work.chunk)
    clock, collector = Clock(), trainer.params.training_collector
    clock.wrap("env", collector.adapter, "step", "advance")
    clock.wrap("inference", collector.policy, "act")
    clock.wrap("buffer", collector.rollout_buffer, "add", "rollout")
    if isinstance(collector.buffer, rl.ReplayBuffer):
        clock.wrap("buffer", collector.buffer, "add_rollout", "sample")
    clock.wrap("update", trainer.algorithm, "update", "observe")
    gradient_steps, started = trainer.gradient_step, time.perf_counter()
    num_steps = advance(-(-steps // work.chunk) * work.chunk)
    total = time.perf_counter() - started
    envs.close()
    seconds = {part: clock.seconds[part] for part in PARTS[:-1]}
    seconds["the rest"] = total - sum(seconds.values())
    parts = {part: value / num_steps * 1e6 for part, value in seconds.items()}
    return Split(parts, seconds["update"] / (trainer.gradient_step - gradient_steps) * 1e6)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return a Markdown table, its first column to the left and the others to the right."""
    columns = list(head)
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def where_time_goes(size: int, options: dict[str, Any]) -> list[str]:
    """Return the parts of a step of PPO and of SAC."""
    runs = {
        "PPO CartPole, 256 x 4": split(WORKS["ppo-256x4"], 10 * size, options),
        "PPO CartPole, 64 x 10": split(WORKS["ppo-64x10"], 5 * size, options),
        "SAC HalfCheetah": split(WORKS["sac"], size // 5, options),
    }
    rows = [
        [name, *(f"{run.parts[part]:,.1f} ({run.parts[part] / run.total:.0%})" for part in PARTS), f"{run.total:,.1f}"]
        for name, run in runs.items()
    ]
    return ["## Parts, us per env step", "", *table(["run", *PARTS, "in all"], rows)]


def growth_with_envs(size: int, options: dict[str, Any]) -> list[str]:
    """Return the cost of PPO's parts with more and more envs."""
    rows = []
    for num_envs in (1, 4, 8, 16, 64, 256, 1024):
        work = replace(WORKS["ppo-256x4"], num_envs=num_envs, chunk=max(2048, 8 * num_envs))
        run = split(work, 2 * size, options)
        rows.append([f"{num_envs:,}", *(f"{run.parts[part]:,.2f}" for part in PARTS), f"{run.total:,.2f}"])
    return ["## Envs: PPO CartPole, us per env step", "", *table(["envs", *PARTS, "in all"], rows)]


def growth_of_update(size: int, options: dict[str, Any]) -> list[str]:
    """Return the cost of a gradient step with larger batches and wider networks."""
    ppo, sac = WORKS["ppo-256x4"], WORKS["sac"]

    def row(name: int, **change: Any) -> list[str]:
        on_policy, off_policy = replace(ppo, **change), replace(sac, **change)
        updates = (split(on_policy, size, options), split(off_policy, size // 10, options))
        return [f"{name:,}", *(f"{run.gradient_step:,.0f}" for run in updates)]

    head = ["PPO CartPole", "SAC HalfCheetah"]
    batches = [row(batch, batch_size=batch) for batch in (32, 64, 256, 1024)]
    widths = [row(width, hidden_sizes=(width, width)) for width in (32, 64, 256, 512)]
    return [
        "## Batch: us per gradient step", "", *table(["batch", *head], batches),
        "## Two hidden layers of this width: us per gradient step", "", *table(["width", *head], widths),
    ]  # fmt: skip


def growth_of_buffer(size: int) -> list[str]:
    """Return the cost of adding and sampling with larger and fuller buffers."""
    rows = []
    for capacity in (10_000, 100_000, 1_000_000):
        for fill in (0.1, 1.0):
            us = []
            for kind in ("add-10", "sample-10"):
                advance = ours.buffer_work(replace(WORKS[kind], fill=fill), 1, capacity)
                advance(size // 20)
                started = time.perf_counter()
                num_steps = advance(size // 4)
                us.append((time.perf_counter() - started) / num_steps * 1e6)
            rows.append([f"{capacity:,}", f"{fill:.0%}", *(f"{value:,.1f}" for value in us)])
    head = ["capacity", "full", "add 16 cells", "sample 256"]
    return ["## Buffer, 17 + 6 floats: us", "", *table(head, rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/parts.md")
    parser.add_argument("--compile", choices=("auto", "true", "false"), default="auto")
    parser.add_argument("--size", type=int, default=2048, help="how long the runs are; their env steps go with it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = ours.run_options(args.compile, None)
    command = "OMP_NUM_THREADS=1 python benchmarks/parts.py --write"
    lines = [
        "# Where our time goes", "",
        f"Written by `{command}` on {datetime.date.today()}: one short run each, so a glance and no claim; one thread, "
        f"compile={args.compile}, rltrainer {rl.__version__}, torch {torch.__version__}, {machine()}.", "",
        *where_time_goes(args.size, options),
        *growth_with_envs(args.size, options),
        *growth_of_update(args.size, options),
        *growth_of_buffer(args.size),
    ]  # fmt: skip
    text = "\n".join(lines)
    print(text)
    if args.write:
        (Path(__file__).resolve().parent / "parts.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
