"""Where our own time goes: the parts of a run, and how cost grows with envs, batch, network and buffer.

The parts are timed from outside: methods of the objects of one run are wrapped in a clock. Short runs, for finding what
to make faster; what is claimed is in `speed.py`.
"""

import argparse
import datetime
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import ours  # first: it finds the folder of `task`
import torch
from speed import machine
from task import ACTION_SIZE, OBS_SIZE, WORKS, Work

import rltrainer as rl
from rltrainer.nets.linear import Library, large_products_by, linear

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
    clock, collector = Clock(), trainer.params.training_collector
    clock.wrap("env", collector.adapter, "step", "advance")
    clock.wrap("inference", collector.policy, "select_action")
    clock.wrap("buffer", collector.rollout_buffer, "add", "rollout")
    if isinstance(collector.buffer, rl.ReplayBuffer):
        clock.wrap("buffer", collector.buffer, "add", "add_rollout", "sample")
    clock.wrap("update", trainer.algorithm, "update", "observe")
    advance(work.random_steps + work.chunk)  # what is compiled knows the wrapped methods
    clock.seconds.clear()
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


def products(kind: str) -> list[tuple[int, int, int]]:
    """Return the matrix products (rows, inner, columns) of two gradient steps of SAC or TD3; none can be left out.

    Of two, because TD3 trains its actor in every second one.
    """
    batch, hidden = WORKS[kind].batch_size, WORKS[kind].hidden_sizes
    actor = list(pairwise((OBS_SIZE, *hidden, 2 * ACTION_SIZE if kind == "sac" else ACTION_SIZE)))
    critic = list(pairwise((OBS_SIZE + ACTION_SIZE, *hidden, 1)))
    critics, judges = 2 * critic, critic if kind == "td3" else 2 * critic
    inner = [layer for layer in critics if layer[0] in hidden]  # the gradients of their inputs are needed

    def forward(layers: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        return [(batch, before, after) for before, after in layers]

    def of_weights(layers: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        return [(before, batch, after) for before, after in layers]

    def of_inputs(layers: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        return [(batch, after, before) for before, after in layers]

    target = forward(actor) + forward(critics)
    critic_step = forward(critics) + of_weights(critics) + of_inputs(inner)
    actor_step = forward(actor) + forward(judges) + of_inputs(judges) + of_weights(actor) + of_inputs(actor[1:])
    return 2 * (target + critic_step) + (1 if kind == "td3" else 2) * actor_step


def beside_products(kind: str) -> list[str]:
    """Return the time of a gradient step beside its float32 matrix products alone, by the better of two libraries.

    The median of five algorithms, each made anew: where the allocator puts the networks changes a step by a tenth.
    """
    operands = [(torch.randn(m, k), torch.randn(n, k)) for m, k, n in products(kind)]
    trainers = [ours.make_offline_trainer(WORKS[kind], 1, {}) for _ in range(5)]
    batch = trainers[0].params.buffer.sample(WORKS[kind].batch_size)

    def by(library: Library) -> float:
        def multiply() -> None:
            for a, b in operands:
                linear(a, b, None)

        with torch.no_grad(), large_products_by(library):
            return us_per_call(multiply) / 2

    def us_per_update(algorithm: Any, choice: str, amp: str | None) -> float:
        algorithm.attach(rl.UpdatePlan(**ours.run_options(choice, amp)))

        def twice() -> None:
            for _ in range(2):
                algorithm.update(batch)

        return us_per_call(twice) / 2

    def update(choice: str, amp: str | None) -> float:
        return statistics.median(us_per_update(trainer.algorithm, choice, amp) for trainer in trainers)

    runs = {"its matrix products, MKL": by("torch"), "its matrix products, large ones oneDNN": by("onednn")}
    floor = min(runs.values())
    runs |= {"eager": update("false", None), "compiled": update("true", None)}
    runs["compiled, bf16"] = update("true", "bf16")
    rows = [[name, f"{us:,.0f}", f"{us / floor:.2f}"] for name, us in runs.items()]
    head = [f"{kind.upper()}, batch 256, 256-256", "us", "times the better products"]
    return [f"## A gradient step of {kind.upper()} beside its matrix products", "", *table(head, rows)]


def us_per_call(call: Callable[[], Any]) -> float:
    """Return the median time of a call, after a warm-up."""
    for _ in range(5):
        call()
    seconds = []
    for _ in range(100):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/measurements/parts.md")
    parser.add_argument("--compile", choices=("auto", "true", "false"), default="auto")
    parser.add_argument("--size", type=int, default=2048, help="how long the runs are; their env steps go with it")
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = ours.run_options(args.compile, None)
    command = f"OMP_NUM_THREADS=1 python benchmarks/parts.py {' '.join(sys.argv[1:])}"
    lines = [
        "# Where our time goes", "",
        f"Written by `{command}` on {datetime.date.today()}: one short run each, so a glance and no claim; one thread, "
        f"compile={args.compile}, rltrainer {rl.__version__}, torch {torch.__version__}, {machine()}.", "",
        *where_time_goes(args.size, options),
        *beside_products("sac"),
        *beside_products("td3"),
        *growth_with_envs(args.size, options),
        *growth_of_update(args.size, options),
        *growth_of_buffer(args.size),
    ]  # fmt: skip
    text = "\n".join(lines)
    print(text)
    if args.write:
        (Path(__file__).resolve().parents[1] / "docs/measurements/parts.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
