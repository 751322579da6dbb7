"""PPO on CartPole-v1: env steps per second of rltrainer beside Stable-Baselines3, measured in one run.

Each measurement is a process of its own, one at a time, the programs in turn; the figure is the median. The peer's
virtual environment is made at the first call, under `benchmarks/.peers/`.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SB3_VENV = HERE / ".peers" / "sb3"
SB3_REQUIREMENT = "stable-baselines3==2.9.*"


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    arguments: tuple[str, ...]
    target: float
    """How many times the peer's speed we claim."""


CASES = (
    Case("batch 256 x 4 repetitions", ("--batch-size", "256", "--repeat", "4"), 2.0),
    Case("batch 64 x 10 repetitions", ("--batch-size", "64", "--repeat", "10"), 1.4),
    Case("collection alone", ("--repeat", "0"), 3.0),
)
PEER = "Stable-Baselines3"
PROGRAMS = {
    PEER: (str(SB3_VENV / "bin" / "python"), str(HERE / "peers" / "sb3_ppo.py")),
    "rltrainer": (sys.executable, str(HERE / "ours_ppo.py")),
    "rltrainer, sync envs": (sys.executable, str(HERE / "ours_ppo.py"), "--backend", "sync"),
}

# One thread each, also in the libraries that read it at import.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def make_sb3_venv() -> None:
    """Make the peer's virtual environment, with the PyTorch version that we run on, unless it is there."""
    finished = SB3_VENV / ".installed"
    if finished.exists():
        return
    print(f"making {SB3_VENV}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(SB3_VENV)], check=True)
    torch_version = importlib.metadata.version("torch").partition("+")[0]
    # torch first: left to the peer, pip would choose its newest build.
    for requirement in (f"torch=={torch_version}", SB3_REQUIREMENT):
        subprocess.run([str(SB3_VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement], check=True)
    finished.touch()


def run_once(program: str, case: Case, steps: int) -> dict:
    """Run one program in a new process and return the JSON line that it prints."""
    command = [*PROGRAMS[program], *case.arguments, "--steps", str(steps)]
    run = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(run.stdout.splitlines()[-1])
    result["speed"] = result["steps"] / result["seconds"]
    print(f"{case.name:28} {program:22} {result['speed']:10,.0f} env steps/s", file=sys.stderr)
    return result


def measure(case: Case, programs: list[str], num_runs: int, steps: int) -> dict[str, list[dict]]:
    """Run the programs in turn, `num_runs` times."""
    results: dict[str, list[dict]] = {program: [] for program in programs}
    for _ in range(num_runs):
        for program in programs:
            results[program].append(run_once(program, case, steps))
    return results


def table(results: dict[str, dict[str, list[dict]]]) -> str:
    """Return the medians as a Markdown table; the ratio is to the peer's median."""
    lines = ["| case | program | envs | env steps/s | lowest to highest | times the peer | goal |"]
    lines.append("|---|---|---|---:|---:|---:|---:|")
    for case in CASES:
        speeds = {program: [run["speed"] for run in runs] for program, runs in results[case.name].items()}
        for program, values in speeds.items():
            median = statistics.median(values)
            is_ours = program != PEER and PEER in speeds
            ratio = f"{median / statistics.median(speeds[PEER]):.2f}" if is_ours else ""
            claim = f"{case.target:.1f}" if program == "rltrainer" else ""
            envs = results[case.name][program][0]["envs"]
            spread = f"{min(values):,.0f} to {max(values):,.0f}"
            lines.append(f"| {case.name} | {program} | {envs} | {median:,.0f} | {spread} | {ratio} | {claim} |")
    return "\n".join(lines)


def machine() -> str:
    """Return the processor, its cores and the system."""
    names = [
        line.partition(":")[2].strip()
        for line in (Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else [])
        if line.startswith("model name")
    ]
    processor = names[0] if names else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def report(results: dict[str, dict[str, list[dict]]], num_runs: int, steps: int) -> str:
    """Return `results.md`."""
    first = results[CASES[0].name]
    versions = {program: first[program][0]["versions"] for program in first}
    version_lines = [
        f"- {program}: {', '.join(f'{name} {version}' for name, version in names.items())}"
        for program, names in versions.items()
    ]
    return "\n".join(
        [
            "# PPO on CartPole-v1: speed",
            "",
            f"Written by `make bench ARGS=--write` on {datetime.date.today()}. Median of {num_runs} runs of {steps:,} "
            "env steps each, after a warm-up; README.md here says what is measured.",
            "",
            f"- {machine()}",
            *version_lines,
            "",
            table(results),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results.md")
    parser.add_argument("--runs", type=int, default=3, help="processes per program and case")
    parser.add_argument("--steps", type=int, default=40_960, help="env steps timed per process")
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="these programs only; may be repeated")
    args = parser.parse_args()
    programs = args.only or list(PROGRAMS)
    if PEER in programs:
        make_sb3_venv()
    results = {case.name: measure(case, programs, args.runs, args.steps) for case in CASES}
    text = report(results, args.runs, args.steps)
    print(text)
    if args.write:
        (HERE / "results.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
