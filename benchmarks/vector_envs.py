"""Env steps per second of HalfCheetah-v5 in vector envs: ours, gymnasium's and EnvPool's, measured in one run.

Each measurement is a process of its own, one at a time, the vector envs in turn; the figure is the median. Actions are
uniformly random and the same everywhere; envs that end are reset as each vector env does it. EnvPool has an
implementation of its own and threads instead of processes; it is measured if it can be imported.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENV_ID = "HalfCheetah-v5"
OURS_SYNC, OURS_WORKERS = "rltrainer sync", "rltrainer workers"
GYM_SYNC, GYM_ASYNC, ENVPOOL = "gymnasium sync", "gymnasium async", "EnvPool"
PROGRAMS = (GYM_SYNC, GYM_ASYNC, OURS_SYNC, OURS_WORKERS, ENVPOOL)

# One thread each, also in the libraries that read it at import.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}


def make(program: str, num_envs: int) -> Any:
    """Make the vector env of one program."""
    import gymnasium as gym

    if program in (GYM_SYNC, GYM_ASYNC):
        return gym.make_vec(ENV_ID, num_envs, vectorization_mode=program.split()[1])
    import rltrainer as rl

    if program == ENVPOOL:
        return rl.make_vec(ENV_ID, num_envs, backend="envpool", seed=1, num_threads=num_cores())
    return rl.make_vec(ENV_ID, num_envs, backend=program.split()[1], seed=1)


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def measure(program: str, num_envs: int, seconds: float) -> dict[str, Any]:
    """Step one vector env for some time."""
    import numpy as np

    envs = make(program, num_envs)
    waits = str(envs.metadata["autoreset_mode"].value) == "Disabled"
    actions = np.random.default_rng(0).uniform(-1, 1, (64, num_envs, 6)).astype(envs.action_space.dtype)
    envs.reset(seed=1)
    num_steps, deadline, started = 0, 0.0, 0.0
    # Rows of 64 steps: the clock is looked at rarely. The first ones warm up.
    for row in range(10**9):
        if row == 2:
            started = time.perf_counter()
            num_steps, deadline = 0, started + seconds
        for action in actions:
            _, _, terminated, truncated, _ = envs.step(action)
            if waits and (terminated | truncated).any():
                envs.reset(options={"reset_mask": terminated | truncated})
        num_steps += num_envs * len(actions)
        if row >= 2 and time.perf_counter() >= deadline:
            break
    speed = num_steps / (time.perf_counter() - started)
    envs.close()
    return {"program": program, "num_envs": num_envs, "speed": speed, "load": os.getloadavg()[0]}


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return the medians as a Markdown table."""
    median = {program: statistics.median(run["speed"] for run in runs) for program, runs in results.items()}
    lines = ["| vector env | env steps/s | lowest to highest | times gymnasium's sync | times its async |"]
    lines.append("|---|---:|---:|---:|---:|")
    for program, speed in median.items():
        speeds = [run["speed"] for run in results[program]]
        ratios = [f"{speed / median[peer]:.2f}" if peer in median else "" for peer in (GYM_SYNC, GYM_ASYNC)]
        lines.append(f"| {program} | {speed:,.0f} | {min(speeds):,.0f} to {max(speeds):,.0f} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def report(results: dict[str, list[dict[str, Any]]], num_envs: int, seconds: float) -> str:
    """Return `vector_envs.md`."""
    runs = next(iter(results.values()))
    loads = [run["load"] for all_runs in results.values() for run in all_runs]
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name")]
    return "\n".join(
        [
            f"# Vector envs: {ENV_ID}, {num_envs} envs",
            "",
            f"Written by `python benchmarks/vector_envs.py --write` on {datetime.date.today()}. Median of {len(runs)} "
            f"runs of {seconds:g} seconds each, one process at a time; random actions, no policy.",
            "",
            f"- {names[0] if names else platform.processor()}, {num_cores()} cores, Python {platform.python_version()}",
            f"- load average of the machine when the runs ended: {min(loads):.1f} to {max(loads):.1f}",
            "",
            table(results),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/measurements/vector_envs.md")
    parser.add_argument("--runs", type=int, default=3, help="processes per vector env")
    parser.add_argument("--seconds", type=float, default=5.0, help="timed per process")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="these only; may be repeated")
    parser.add_argument("--measure", choices=PROGRAMS, help="measure one in this process and print a JSON line")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.num_envs, args.seconds)))
        return
    programs = args.only or [name for name in PROGRAMS if name != ENVPOOL or importlib.util.find_spec("envpool")]
    results: dict[str, list[dict[str, Any]]] = {program: [] for program in programs}
    options = ["--num-envs", str(args.num_envs), "--seconds", str(args.seconds)]
    for _ in range(args.runs):
        for program in programs:
            command = [sys.executable, "-W", "ignore", __file__, "--measure", program, *options]
            run = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
            results[program].append(json.loads(run.stdout.splitlines()[-1]))
            print(json.dumps(results[program][-1]), file=sys.stderr)
    text = report(results, args.num_envs, args.seconds)
    print(text)
    if args.write:
        (HERE.parent / "docs/measurements/vector_envs.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
