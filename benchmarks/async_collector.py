"""Time per env step with workers that collect while the learner updates, beside one process; in one run.

- cheetah: SAC on HalfCheetah-v5 with one worker, a gradient step per env step, beside a `Collector`. What is possible
  is the time of one process over that of its slower half, t_sync / max(t_update, t_collect).
- slow: SAC on Pendulum whose steps sleep 5 ms, in the same way.
- uneven: collection alone in 8 envs that sleep 20 ms in 5 of 100 steps, beside envs that workers step together.

Each measurement is a process of its own, one at a time, in turn; the figures are medians. One torch thread everywhere.
The first two are measured uncompiled and compiled.
Run it on a machine that does nothing else.
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
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
CASES = {
    "cheetah": ("SAC HalfCheetah-v5", 2000),
    "cheetah_compiled": ("SAC HalfCheetah-v5, compiled", 2000),
    "slow": ("SAC Pendulum, 5 ms a step", 1000),
    "slow_compiled": ("SAC Pendulum, 5 ms a step, compiled", 1000),
    "uneven": ("8 uneven envs, no updates", 3000),
}  # what it is, and the env steps that are timed


def cheetah() -> Any:
    import rltrainer as rl

    return rl.make_vec("HalfCheetah-v5", 1)


def slow() -> Any:
    import rltrainer as rl

    return rl.make_vec(partial(Sleeping, "Pendulum-v1", 1, 0.005), 1)


def uneven(num_envs: int = 1, **options: Any) -> Any:
    import rltrainer as rl

    return rl.make_vec(partial(Sleeping, "CartPole-v1", 0.05, 0.02), num_envs, **options)


def train(make_envs: Any, is_async: bool, num_steps: int, compiled: bool) -> dict[str, float]:
    """Train SAC; return the seconds per env step of the second half of the run, in all and by its parts."""
    import rltrainer as rl

    rl.seed(1)
    envs = make_envs()
    algorithm = rl.SAC(rl.SquashedActorCritic.for_envs(envs))
    buffer = rl.ReplayBuffer(100_000, envs.single_observation_space, envs.single_action_space)
    kind = partial(rl.AsyncCollector, num_workers=1) if is_async else rl.Collector
    collector = kind(algorithm.policy, make_envs if is_async else envs, buffer=buffer)
    params = rl.OffPolicyTrainerParams(
        training_collector=collector, max_epochs=2, epoch_num_steps=num_steps, seed=1, verbose=False,
        show_progress=False, runtime=rl.RuntimeParams(num_threads=1, compile=compiled),
        **rl.SAC.recommended(envs) | {"warmup_num_env_steps": min(1000, num_steps // 2)},
    )  # fmt: skip
    timing = algorithm.run_training(params).epochs[-1].timing
    collector.close()
    names = {"total": timing.total, "collect": timing.collect, "update": timing.update}
    return {name: seconds / num_steps for name, seconds in names.items()}


def collect(is_async: bool, num_steps: int) -> dict[str, float]:
    """Collect in 8 uneven envs; return the seconds per env step."""
    import rltrainer as rl

    num_envs = 8
    envs = uneven(num_envs, backend="workers", num_workers=num_envs)
    policy = rl.ActorCritic.for_envs(envs)
    buffer = rl.RolloutBuffer(128, num_envs, policy.observation_space, policy.action_space)
    collector: Any = (
        rl.AsyncCollector(policy, uneven, num_envs, buffer) if is_async else rl.Collector(policy, envs, buffer)
    )
    collector.collect(num_steps=128 * num_envs)
    taken, started = 0, time.perf_counter()
    while taken < num_steps:
        taken += collector.collect(num_steps=128 * num_envs).num_env_steps
    seconds = time.perf_counter() - started
    collector.close()
    envs.close()
    return {"total": seconds / taken}


def table(results: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """Return the medians as a Markdown table."""
    lines = [
        "| case | one process: ms a step (collect, update) | async: ms | times as fast | possible | share of it |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for case, runs in results.items():
        (alone, beside) = (
            {name: 1e3 * statistics.median(run[name] for run in runs[kind]) for name in runs[kind][0]}
            for kind in ("sync", "async")
        )
        parts, most, gain = "", "", alone["total"] / beside["total"]
        if "update" in alone:
            possible = alone["total"] / max(alone["update"], alone["collect"])
            parts, most = f" ({alone['collect']:.3f}, {alone['update']:.3f})", f"{possible:.2f} | {gain / possible:.2f}"
        most = most or "|"
        name = CASES[case][0]
        lines.append(f"| {name} | {alone['total']:.3f}{parts} | {beside['total']:.3f} | {gain:.2f} | {most} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/measurements/async_collector.md")
    parser.add_argument("--runs", type=int, default=5, help="processes of each kind")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; may be repeated")
    parser.add_argument("--measure", choices=["sync", "async"], help="measure one here and print a JSON line")
    args = parser.parse_args()
    cases = args.case or list(CASES)
    if args.measure:
        name, _, compiled = cases[0].partition("_")
        is_async, num_steps = args.measure == "async", CASES[cases[0]][1]
        if name == "uneven":
            print(json.dumps(collect(is_async, num_steps)))
        else:
            print(json.dumps(train({"cheetah": cheetah, "slow": slow}[name], is_async, num_steps, bool(compiled))))
        return
    results: dict[str, dict[str, list[dict[str, float]]]] = {case: {"sync": [], "async": []} for case in cases}
    for case, runs in results.items():
        for _ in range(args.runs):
            for kind, measured in runs.items():
                command = [sys.executable, "-W", "ignore", __file__, "--measure", kind, "--case", case]
                run = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)
                measured.append(json.loads(run.stdout.splitlines()[-1]))
                print(case, kind, json.dumps(measured[-1]), file=sys.stderr)
    lines = [
        "# Workers that collect while the learner updates\n",
        f"Written by `python benchmarks/async_collector.py --write` on {datetime.date.today()}. Medians of {args.runs}",
        "runs, one process at a time: the second half of 4,000 env steps on HalfCheetah, 2,000 on Pendulum; 3,000 of",
        f"the uneven envs. {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}.\n",
        table(results) + "\n",
    ]
    text = "\n".join(lines)
    print(text)
    if args.write:
        (HERE.parent / "docs/measurements/async_collector.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
