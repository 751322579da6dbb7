"""Env steps per second of envs that sleep unevenly: a lock-step collector beside batched inference, in one run.

Each step of an env sleeps 0 ms, or 20 ms in 5 of 100 steps: 1 ms on average. `Collector` and `BatchedCollector` step 8
of them in worker processes with the same policy, the one like the other into a buffer. Each measurement is a process of
its own, one at a time, in turn; the figure is the median. Run it on a machine that does nothing else.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from sleeping import Sleeping

HERE = Path(__file__).parent
# One thread each, also in the libraries that read it at import.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}

LOCK_STEP = "Collector, workers=8"
PROGRAMS: dict[str, dict[str, Any] | None] = {
    LOCK_STEP: None,
    "BatchedCollector": {},
    "BatchedCollector, 2 at least": {"min_batch_size": 2},
    "BatchedCollector, 4 at least": {"min_batch_size": 4},
}
"""What is measured: the `InferenceParams`, or None for a lock-step collector."""


def measure(program: str, num_envs: int, seconds: float, on_policy: bool) -> dict[str, Any]:
    """Collect for some time."""
    import rltrainer as rl

    factory = partial(Sleeping, "CartPole-v1", 0.05, 0.02)
    envs = rl.make_vec(factory, num_envs, backend="workers", num_workers=num_envs, seed=1)
    policy = rl.ActorCritic.for_envs(envs)
    spaces = (envs.single_observation_space, envs.single_action_space)
    buffer: Any = rl.RolloutBuffer(64, num_envs, *spaces)
    size = 1024
    if not on_policy:
        buffer, size = rl.ReplayBuffer(100_000, *spaces, num_envs=num_envs), num_envs
    inference = PROGRAMS[program]
    collector = rl.Collector(policy, envs, buffer)
    if inference is not None:
        collector = rl.BatchedCollector(policy, envs, buffer, inference=rl.InferenceParams(**inference))
    collector.collect(num_steps=32 * num_envs)
    num_steps, started = 0, time.perf_counter()
    while time.perf_counter() < started + seconds:
        num_steps += collector.collect(num_steps=size).num_env_steps
    speed = num_steps / (time.perf_counter() - started)
    collector.close()
    return {"program": program, "speed": speed, "load": os.getloadavg()[0]}


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    """Return the medians as a Markdown table."""
    median = {program: statistics.median(run["speed"] for run in runs) for program, runs in results.items()}
    lines = ["| collector | env steps/s | lowest to highest | times lock step |", "|---|---:|---:|---:|"]
    for program, speed in median.items():
        speeds = [run["speed"] for run in results[program]]
        ratio = f"{speed / median[LOCK_STEP]:.2f}"
        lines.append(f"| {program} | {speed:,.0f} | {min(speeds):,.0f} to {max(speeds):,.0f} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/measurements/batched_inference.md")
    parser.add_argument("--runs", type=int, default=5, help="processes per collector")
    parser.add_argument("--seconds", type=float, default=5.0, help="timed per process")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--measure", choices=PROGRAMS, help="measure one in this process and print a JSON line")
    parser.add_argument("--off-policy", action="store_true", help="of --measure: a step of each env per collection")
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.num_envs, args.seconds, not args.off_policy)))
        return
    texts = []
    for kind, flags in (("On policy: rollouts of 1,024 steps", []), ("Off policy: 8 steps", ["--off-policy"])):
        results: dict[str, list[dict[str, Any]]] = {program: [] for program in PROGRAMS}
        for _ in range(args.runs):
            for program in PROGRAMS:
                command = [sys.executable, "-W", "ignore", __file__, "--measure", program, *flags]
                command += ["--num-envs", str(args.num_envs), "--seconds", str(args.seconds)]
                run = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
                results[program].append(json.loads(run.stdout.splitlines()[-1]))
                print(json.dumps(results[program][-1]), file=sys.stderr)
        texts.append(f"## {kind} per collection\n\n{table(results)}\n")
    head = (
        f"# Batched inference: {args.num_envs} envs that sleep 20 ms in 5 of 100 steps\n\n"
        f"Written by `python benchmarks/batched_inference.py --write` on {datetime.date.today()}. Median of "
        f"{args.runs} runs of {args.seconds:g} seconds each, one process at a time.\n\n"
        f"- {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n\n"
    )
    text = head + "\n".join(texts)
    print(text)
    if args.write:
        (HERE.parent / "docs/measurements/batched_inference.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
