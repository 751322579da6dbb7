"""The slow fuzz: `make fuzz`, or `python -m tests.security.fuzz --mutations 1000 --only buffer --seed 2`.

Damages what each reader reads, again and again, and counts the outcomes; a reader's mutations are shared by the ways
to damage its files, which have a row each. The n-th damage of a row follows from its name, the seed and n alone, so
that a failure, which is printed with all three, comes again with `--only NAME --first n --mutations 1`.
"""

import argparse
import math
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

from tests.security.loaders import Loader, make_loaders

MAX_GROWTH = 300 << 20
"""Bytes by which the process may grow in all mutations of a loader, of files of 20 kB."""


def peak() -> int:
    """Return the most memory that the process ever took, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(loader: Loader, first: int, stop: int, seed: int, seconds: float) -> tuple[Counter[str], int]:
    """Return the outcomes of a loader's mutations, and how many went wrong."""
    counts: Counter[str] = Counter()
    num_wrong, before, end = 0, peak(), time.monotonic() + seconds
    for number in range(first, stop):
        if time.monotonic() > end:
            break
        try:
            counts[loader.try_one(random.Random(f"{seed}/{loader.name}/{number}"))] += 1
        except Exception:
            num_wrong += 1
            print(f"--seed {seed} --only {loader.name!r} --first {number}", file=sys.stderr)
            traceback.print_exc()
    if peak() - before > MAX_GROWTH:
        num_wrong += 1
        print(f"{loader.name}: took {(peak() - before) >> 20} MiB more", file=sys.stderr)
    return counts, num_wrong


def main() -> int:
    """Print a row for each loader; return how many mutations did neither what was promised nor nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=100_000, help="of each reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first one of each row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each row, at most")
    parser.add_argument("--only", nargs="*", help="names of readers, or of rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    memory = Path("/dev/shm")
    total = 0
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        loaders = make_loaders(Path(folder))
        unknown = set(options.only or ()) - {name for each in loaders.values() for name in (each.name, each.reader)}
        if unknown:
            parser.error(f"--only: must name readers or rows; got {sorted(unknown)}. There are {', '.join(loaders)}.")
        chosen = [x for x in loaders.values() if options.only is None or {x.name, x.reader} & set(options.only)]
        num_ways = Counter(loader.reader for loader in chosen)
        print(f"{'reader, damage':40} {'mutations':>9} {'refused':>8} {'same':>8} {'other':>8} {'wrong':>6} {'s':>6}")
        for loader in chosen:
            began = time.monotonic()
            stop = options.first + math.ceil(options.mutations / num_ways[loader.reader])
            counts, num_wrong = fuzz(loader, options.first, stop, options.seed, options.seconds)
            found = [counts[outcome] for outcome in ("refused", "same", "other")]
            numbers = " ".join(f"{count:8}" for count in found)
            seconds = time.monotonic() - began
            print(f"{loader.name:40} {sum(found) + num_wrong:9} {numbers} {num_wrong:6} {seconds:6.0f}", flush=True)
            total += num_wrong
    return total


if __name__ == "__main__":
    sys.exit(min(main(), 1))
