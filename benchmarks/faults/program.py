"""The program of `chaos.py`: leads the runs of all legs through their faults, and reports."""

import argparse
import datetime
import gc
import itertools
import os
import platform
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.faults.conductor import AS_PROMISED, BROKEN, TOO_LATE, Run, Tally, way_of
from benchmarks.faults.disk_faults import DiskFull
from benchmarks.faults.fault import Fault
from benchmarks.faults.kinds import KINDS
from benchmarks.faults.legs import INEXACT, LEGS
from benchmarks.faults.process import Born

REPORT = Path(__file__).parents[2] / "docs/measurements/chaos.md"
SHARES = {
    "off-policy, workers": 8, "on-policy": 5, "on-policy, native": 3, "offline": 4, "off-policy, restarts": 3,
    "off-policy, async": 4, "off-policy, batched": 4,
}  # fmt: skip
"""Of the faults, by leg."""
NOTES = """Each fault strikes one life of a run, which the next life goes on with. Looked at after each: exit status;
error or warning, and what it names; every training step and the end, against those of an undisturbed run (weights at
each step; at the end also optimizers, buffer, random numbers, statistics and log rows); that the newest checkpoint that
is whole was taken, how much was lost, that no committed file changed, that nothing half written is left; that no
process is left.

Where the disk is full, it is: the checkpoints lie in a small file system in memory, which is filled up. "refused by the
disk" is injected: a call that opens, flushes, makes or renames a file raises ENOSPC, EDQUOT, EIO or EROFS."""


def main() -> int:
    """Run the command; return 0 if all was as promised. In a process that is forked for a life, raise `Born`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos")
    parser.add_argument("inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=30, help="of a run, undisturbed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--leg", choices=LEGS, action="append", help="only this leg; may be repeated")
    parser.add_argument(
        "--kind", choices=[kind.name for kind in KINDS], action="append", help="only this kind of fault"
    )
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    arguments = parser.parse_args()
    gc.freeze()  # pages of objects that nobody looks at stay shared with the lives
    shares = {leg: SHARES[leg] for leg in arguments.leg or SHARES}
    kinds = [kind for kind in KINDS if not arguments.kind or kind.name in arguments.kind]
    if not os.path.ismount(arguments.inside / "small"):
        kinds = [kind for kind in kinds if not issubclass(kind, DiskFull)]
    tallies: dict[str, Tally] = {}
    for leg, count in split(arguments.faults, shares).items():
        tallies[leg] = Tally()
        conduct(leg, count, kinds, arguments, tallies[leg])
        print(f"{leg}: {dict(Counter(outcome for _, outcome in tallies[leg].outcomes.elements()))}", flush=True)
    text = report(tallies, arguments)
    print(text)
    if arguments.write:
        REPORT.write_text(text)
    return int(any(tally.problems for tally in tallies.values()))


def conduct(leg: str, count: int, kinds: list[type[Fault]], arguments: argparse.Namespace, tally: Tally) -> None:
    """Lead runs of a leg through so many faults, and the last one to its end."""
    draw, started = random.Random(f"{arguments.seed} {leg}"), time.monotonic()
    name, small = leg.replace(", ", "-"), arguments.inside / "small"
    way = way_of(leg, arguments.inside / f"{name}-undisturbed", arguments.epochs)
    tally.length = max(way)
    runs = (
        Run(leg, arguments.inside / f"{name}-{n}", small / f"{name}-{n}", arguments.epochs, way, tally)
        for n in itertools.count(1)
    )
    run = next(runs)
    for kind in deck(leg, kinds, count, draw):
        fault = kind(random.Random(draw.random()), leg)
        problems = run.play(fault)
        tally.outcomes[fault.name, BROKEN if problems else AS_PROMISED if fault.struck else TOO_LATE] += 1
        tally.tell(f"{leg}, {run.folder.name}, {fault.name}", problems)
        if problems or run.is_over:
            run = replaced(run, runs, tally)
    while not run.is_over:
        calm = Fault(random.Random(0), leg)
        calm.plan = replace(calm.plan, limit=10**9, longest=900)
        if problems := run.play(calm):
            tally.tell(f"{leg}, {run.folder.name}, the end", problems)
            break
    replaced(run, runs, tally)
    tally.seconds = time.monotonic() - started


def replaced(run: Run, runs: Iterator[Run], tally: Tally) -> Run:
    """Return the next run, when nothing of the last one runs any more."""
    tally.tell(f"{run.leg}, {run.folder.name}", run.orphans(waits=True))
    shutil.rmtree(run.saved)
    return next(runs)


def deck(leg: str, kinds: list[type[Fault]], count: int, draw: random.Random) -> Iterator[type[Fault]]:
    """Yield the kinds of a leg in random order, each as often as the others."""
    of_leg = [kind for kind in kinds if leg in kind.legs]
    while of_leg and count > 0:
        for kind in draw.sample(of_leg, min(len(of_leg), count)):
            count -= 1
            yield kind


def split(count: int, shares: dict[str, int]) -> dict[str, int]:
    """Return how many faults each leg gets."""
    ends = [round(count * sum(list(shares.values())[:n]) / sum(shares.values())) for n in range(len(shares) + 1)]
    return {leg: after - before for leg, before, after in zip(shares, ends[:-1], ends[1:], strict=True)}


def report(tallies: dict[str, Tally], arguments: argparse.Namespace) -> str:
    """Return the page."""
    total: Counter[str] = Counter()
    kinds: dict[str, Counter[str]] = {kind.name: Counter() for kind in KINDS}
    for tally in tallies.values():
        for (kind, outcome), count in tally.outcomes.items():
            kinds[kind][outcome] += count
            total[outcome] += count
    outcomes = (AS_PROMISED, TOO_LATE, BROKEN)
    by_kind = [[kind, *(counts[outcome] for outcome in outcomes)] for kind, counts in kinds.items() if counts]
    by_leg = [
        [
            leg,
            sum(t.outcomes.values()),
            t.length,
            t.steps,
            t.finished,
            t.equal if leg not in INEXACT else "-",
            f"{t.seconds:.0f}",
        ]
        for leg, t in tallies.items()
    ]
    problems = [f"- {problem}" for tally in tallies.values() for problem in tally.problems]
    parts = [
        "# Chaos",
        f"`python -m benchmarks.chaos {' '.join(shown(arguments))}` on {datetime.date.today()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, {platform.system()}.",
        f"{sum(total.values())} faults: {total[AS_PROMISED]} ended as promised, {total[TOO_LATE]} came too late to "
        f"strike (the life was over), {total[BROKEN]} did not end as promised.",
        table(["fault", *outcomes], [*by_kind, ["all", *(total[outcome] for outcome in outcomes)]]),
        NOTES,
        table(
            ["leg", "faults", "training steps of a run", "made in all", "runs finished", "bit-equal", "seconds"], by_leg
        ),
        *(["## Not as promised", "\n".join(problems)] if problems else []),
    ]
    return "\n\n".join(parts) + "\n"


def shown(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments that make the same faults."""
    legs = [f'--leg "{leg}"' for leg in arguments.leg or ()]
    kinds = [f'--kind "{kind}"' for kind in arguments.kind or ()]
    numbers = [f"--{name} {getattr(arguments, name)}" for name in ("faults", "epochs", "seed")]
    return [*numbers, *legs, *kinds]


def table(head: list[str], rows: list[list[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


if __name__ == "__main__":
    live = None
    try:
        status = main()
    except Born as born:
        live = born.live
    if live is None:
        sys.exit(status)
    live()
