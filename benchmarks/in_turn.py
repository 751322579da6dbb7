"""Speed beside another checkout of this project, such as that of an older commit: each case in both, in turn.

    git worktree add ../before ae1a9f6
    python benchmarks/in_turn.py ../before --write
    python benchmarks/in_turn.py . --python ../.venv-other/bin/python    # this checkout with another PyTorch

Each run is a new process of `ours.py`, on one thread and one core (two ranks: on two); the figure is the median.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import ours  # noqa: F401  # it finds the folder of `task`
import torch
from parts import table
from speed import machine

HERE = Path(__file__).resolve().parents[1]
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@dataclass(frozen=True)
class Case:
    """What is run: a work of `peers/task.py`, with the env steps of the warm-up and of the measurement."""

    work: str
    warmup: int
    steps: int
    options: tuple[str, ...] = ()
    num_ranks: int = 1


TENSORS = ("--backend", "tensor")
CASES = {
    "ppo-64x10": Case("ppo-64x10", 4096, 20_480),
    "ppo-256x4": Case("ppo-256x4", 8192, 61_440),
    "a2c": Case("a2c", 4000, 20_000),
    "dqn": Case("dqn", 1000, 5000),
    "sac": Case("sac", 400, 1000),
    "td3": Case("td3", 400, 1200),
    "ppo-tensors-8": Case("ppo-256x4", 8192, 122_880, TENSORS),
    "ppo-tensors-1024": Case("ppo-1024", 32_768, 327_680, TENSORS),
    "ppo-64x10-ranks-2": Case("ppo-64x10", 4096, 20_480, num_ranks=2),
}


def speed(python: str, checkout: Path, name: str, compile_: str) -> float:
    """Return the env steps per second of a new process in a checkout, which keeps its compiled graphs for itself."""
    case = CASES[name]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.num_ranks)]
    command = [python, *(torchrun if case.num_ranks > 1 else []), "benchmarks/ours.py", case.work, *case.options]
    command += ["--compile", compile_, "--warmup", str(case.warmup), "--steps", str(case.steps)]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, CORES[-case.num_ranks :])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(checkout / ".inductor" / "in_turn")
    run = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{name} in {checkout} failed:\n{run.stderr[-2000:]}")
    result = json.loads(run.stdout.splitlines()[-1])
    return float(result["steps"] / result["seconds"])


def measured(python: str, other: Path, case: str, compile_: str, num_runs: int) -> tuple[list[float], list[float]]:
    """Return the speeds of the other checkout and of this one; the first runs of compiled programs fill their cache."""
    speeds: dict[tuple[str, Path], list[float]] = {(python, other): [], (sys.executable, HERE): []}
    for i in range(-1 if compile_ == "true" else 0, num_runs):
        for program in sorted(speeds, reverse=bool(i % 2)):
            found = speed(*program, case, compile_)
            if i >= 0:
                speeds[program].append(found)
    return speeds[python, other], speeds[sys.executable, HERE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the other checkout")
    parser.add_argument("--case", action="append", choices=CASES, help="only these")
    parser.add_argument("--compile", choices=("true", "false"), help="only so")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--write", action="store_true", help="write docs/measurements/in_turn.md")
    args = parser.parse_args()
    other = args.other.resolve()
    rows = []
    for case in args.case or CASES:
        for compile_ in [args.compile] if args.compile else ["false", "true"]:
            there, here = measured(args.python, other, case, compile_, args.runs)
            ratio = statistics.median(here) / statistics.median(there)
            how = f"{case}, {'compiled' if compile_ == 'true' else 'uncompiled'}"
            ranges = [f"{statistics.median(x):,.0f} ({min(x):,.0f} to {max(x):,.0f})" for x in (there, here)]
            rows.append([how, *ranges, f"{ratio:.2f}"])
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    commits = [
        subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=x, capture_output=True, text=True).stdout.strip()
        for x in (other, HERE)
    ]
    head = f"Written by `python benchmarks/in_turn.py` on {datetime.date.today()}: env steps per second, median (range)"
    head += f" of {args.runs} runs in turn, one core for a process; torch {torch.__version__}, {machine()}."
    lines = ["# Speed beside an older commit", "", head, "", *table(["run", *commits, "ratio"], rows)]
    text = "\n".join(lines)
    print(text)
    if args.write:
        (HERE / "docs/measurements/in_turn.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
