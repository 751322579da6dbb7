"""PPO on CartPole with envs of tensors, beside rejax, whose envs are part of its program, too; on one core.

    python benchmarks/tensor_envs.py --write

Programs take turns, each run in a new process; env steps per second, training included; the figure is the median.
"""

import argparse
import datetime
import os
import statistics
import sys
from pathlib import Path

from speed import CASES, PROGRAMS, Runs, machine, make_venv, measure, versions

OURS, PEER = "ours-tensor", "rejax"
SETTINGS = {
    "ppo-1024": "1,024 envs x 16, batch 1,024, 4 epochs",
    "ppo-256x4": "8 envs x 256, batch 256, 4 epochs",
    "ppo-64x10": "8 envs x 256, batch 64, 10 epochs",
}
"""The cases of `speed.py`, in words."""


def rows(results: Runs) -> list[str]:
    """Return a line of Markdown for each case: both programs' medians and ranges, and the ratio of the medians."""
    lines = []
    for case, runs in results.items():
        found = {key: [run["value"] for run in runs[key]] for key in (OURS, PEER)}
        texts = [f"{statistics.median(x):,.0f} ({min(x):,.0f} to {max(x):,.0f})" if x else "" for x in found.values()]
        medians = [statistics.median(x) for x in found.values() if x]
        ratio = f"{medians[0] / medians[1]:.2f}" if len(medians) == len(found) else ""
        lines.append(f"| {SETTINGS[case]} | {' | '.join(texts)} | {ratio} | {CASES[case].goals[OURS]:g} |")
    return lines


def report(results: Runs, num_runs: int) -> str:
    """Return `tensor_envs.md`."""
    command = " ".join(["python benchmarks/tensor_envs.py", *sys.argv[1:]])
    head = [
        "# PPO on CartPole with envs of tensors", "",
        f"Printed by `{command}` on {datetime.date.today()}. Env steps per second, training included, after the first "
        f"rollouts, which compile; the median (range) of {num_runs} processes that took turns, on one core.", "",
        f"- {machine()}", *versions(results), "",
        f"| | {PROGRAMS[OURS].title} | {PROGRAMS[PEER].title} | ratio | goal |", "|---|---|---|---|---|",
    ]  # fmt: skip
    return "\n".join([*head, *rows(results), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=SETTINGS, help="only these; may be repeated")
    parser.add_argument("--only", action="append", choices=(OURS, PEER), help="only this program")
    parser.add_argument("--runs", type=int, default=5, help="processes of each program")
    parser.add_argument("--share", type=float, default=10.0, help="of the steps that the case has in speed.py")
    parser.add_argument("--write", action="store_true", help="write docs/measurements/tensor_envs.md")
    args = parser.parse_args()
    programs = args.only or [OURS, PEER]
    if PEER in programs:
        make_venv("jax")
    if hasattr(os, "sched_setaffinity"):  # the processes inherit it
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    results = measure(args.case or list(SETTINGS), programs, args.runs, args.share)
    for runs in results.values():
        runs |= {key: runs.get(key, []) for key in (OURS, PEER)}
    text = report(results, args.runs)
    print(text)
    if args.write:
        (Path(__file__).resolve().parents[1] / "docs/measurements/tensor_envs.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
