"""Speed beside another checkout of this project, such as that of an older commit: each case in both, in turn.

    git worktree add ../before ae1a9f6
    python benchmarks/in_turn.py ../before --write
    python benchmarks/in_turn.py . --python ../.venv-other/bin/python    # this checkout with another PyTorch

Each run is a new process of `ours.py`, on one thread and one core; the figure is the median.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import ours  # noqa: F401  # it finds the folder of `task`
import torch
from parts import table
from speed import machine

HERE = Path(__file__).resolve().parents[1]
CASES = {
    "ppo-64x10": (4096, 20480), "ppo-256x4": (8192, 61440), "a2c": (4000, 20000), "dqn": (1000, 5000),
    "sac": (400, 1000), "td3": (400, 1200),
}  # fmt: skip
"""Env steps of the warm-up and of the measurement."""


def speed(python: str, checkout: Path, case: str, compile_: str) -> float:
    """Return the env steps per second of a new process in a checkout, which keeps its compiled graphs for itself."""
    warmup, steps = CASES[case]
    command = [python, "benchmarks/ours.py", case, "--compile", compile_]
    command += ["--warmup", str(warmup), "--steps", str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(checkout / ".inductor" / "in_turn")
    run = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{case} in {checkout} failed:\n{run.stderr[-2000:]}")
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
    parser.add_argument("--write", action="store_true", help="write benchmarks/in_turn.md")
    args = parser.parse_args()
    other = args.other.resolve()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
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
    head += f" of {args.runs} runs in turn on one core; torch {torch.__version__}, {machine()}."
    lines = ["# Speed beside an older commit", "", head, "", *table(["run", *commits, "ratio"], rows)]
    text = "\n".join(lines)
    print(text)
    if args.write:
        (HERE / "benchmarks" / "in_turn.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
