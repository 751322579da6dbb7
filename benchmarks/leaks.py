"""Memory, file descriptors, threads and shared memory over 500,000 env steps of each collector: all must stay flat.

    OMP_NUM_THREADS=1 python benchmarks/leaks.py --write

Each collector takes its steps in a process of its own. Nothing here is timed.
"""

import argparse
import datetime
import gc
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl

HERE = Path(__file__).parent

KINDS = ("sync", "native", "workers", "gymnasium async", "batched", "async", "async, in step")
CHUNK = 1000
"""Env steps of a collection."""
SLACK = {"memory": 2048, "memory of workers": 2048}
"""KiB that memory may differ by: allocators keep pages. Of everything else there must not be one more."""

Sizes = dict[str, int]


class CheapEnv(gym.Env[Any, Any]):
    """Observes four numbers; episodes of 50 steps, with infos."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        return np.zeros(4, np.float32), {"seed": seed}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        return np.zeros(4, np.float32), 1.0, self.num_steps == 50, False, {"steps": self.num_steps, "text": "x"}


def make_one() -> Any:
    return rl.make_vec(CheapEnv, 2, backend="sync")


def make_collector(kind: str) -> Any:
    """Return a collector with a small replay buffer."""
    makers: dict[str, Any] = {
        "sync": lambda: rl.make_vec(CheapEnv, 4, backend="sync"),
        "native": lambda: rl.make_vec("CartPole-v1", 8, backend="native"),
        "workers": lambda: rl.make_vec(CheapEnv, 4, backend="workers", num_workers=2),
        "gymnasium async": lambda: gym.vector.AsyncVectorEnv([CheapEnv] * 2),
        "batched": lambda: rl.make_vec(CheapEnv, 2, backend="workers", num_workers=2),
    }
    if kind in makers:
        envs = makers[kind]()
        policy = rl.QNetwork.for_envs(envs, hidden_sizes=(8,))
        buffer = rl.ReplayBuffer(2000, policy.observation_space, policy.action_space, num_envs=envs.num_envs)
        return (rl.BatchedCollector if kind == "batched" else rl.Collector)(policy, envs, buffer)
    policy = rl.QNetwork.for_envs(make_one(), hidden_sizes=(8,))
    buffer = rl.ReplayBuffer(2000, policy.observation_space, policy.action_space, num_envs=4)
    max_ahead = 0 if kind == "async, in step" else None
    return rl.AsyncCollector(policy, make_one, 2, buffer, max_ahead=max_ahead)


def sizes_now() -> Sizes:
    """Return what this process and its workers hold; memory in KiB."""
    gc.collect()
    workers = [child.pid for child in multiprocessing.active_children()]

    def count(name: str) -> int:
        return sum(len(os.listdir(f"/proc/{pid}/{name}")) for pid in [os.getpid(), *workers])

    return {
        "memory": _memory(os.getpid()),
        "memory of workers": sum(map(_memory, workers)),
        "processes": 1 + len(workers),
        "descriptors": count("fd"),
        "threads": count("task"),
        "mapped files": sum(map(_num_shared_maps, [os.getpid(), *workers])),
        "/dev/shm": len(os.listdir("/dev/shm")),
    }


def measure(kind: str, num_steps: int, num_points: int) -> list[Sizes]:
    """Take so many env steps; return the sizes at the beginning and at points of equal distance."""
    torch.set_num_threads(1)
    collector = make_collector(kind)
    try:
        collector.collect(num_steps=4 * CHUNK)  # what is allocated once, and fills the buffer
        sizes = [sizes_now()]
        for _ in range(num_points):
            for _ in range(num_steps // num_points // CHUNK):
                collector.sync()
                collector.collect(num_steps=CHUNK)
            sizes.append(sizes_now())
        return sizes
    finally:
        collector.close()


def grown(sizes: list[Sizes]) -> dict[str, tuple[int, int]]:
    """Return what is larger at the end than it was at its smallest, beyond the slack: from what to what."""
    ends = {name: (min(each[name] for each in sizes), sizes[-1][name]) for name in sizes[0]}
    return {name: (least, last) for name, (least, last) in ends.items() if last - least > SLACK.get(name, 0)}


def _memory(pid: Any) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def _num_shared_maps(pid: Any) -> int:
    return sum("/memfd:" in line or "/dev/shm/" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500_000, help="env steps of each collector")
    parser.add_argument("--points", type=int, default=5, help="how often the sizes are taken")
    parser.add_argument("--write", action="store_true", help="write docs/measurements/leaks.md")
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.kind:
        print_table(args.kind, measure(args.kind, args.steps, args.points), args.steps)
        return
    command = [sys.executable, __file__, "--steps", str(args.steps), "--points", str(args.points), "--kind"]
    tables = []
    for kind in KINDS:
        done = subprocess.run([*command, kind], stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout, flush=True)
        tables.append(done.stdout)
    if args.write:
        head = f"# Leaks\n\nWritten by `python benchmarks/leaks.py --write` on {datetime.date.today()}. {__doc__}"
        (HERE.parent / "docs/measurements/leaks.md").write_text("\n".join([head.strip(), "", *tables]).rstrip() + "\n")


def print_table(kind: str, sizes: list[Sizes], num_steps: int) -> None:
    """Print the sizes of one collector, and whether one has grown."""
    bad = grown(sizes[1:])
    print(f"## {kind}\n\n| env steps | " + " | ".join(sizes[0]) + " |\n|" + "---|" * (len(sizes[0]) + 1))
    for i, each in enumerate(sizes):
        print(
            f"| {i * num_steps // (len(sizes) - 1):,} | " + " | ".join(f"{value:,}" for value in each.values()) + " |"
        )
    print(f"\n{'Flat.' if not bad else f'GROWN: {bad}'}\n")


if __name__ == "__main__":
    main()
