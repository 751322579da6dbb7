"""The work that all programs do, their arguments, and the clock. Needs Python alone: each program has its own packages.

A program builds one `Work` with its library and hands `measure` a function that does some more of it.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """What is trained, with the hyperparameters that all programs share.

    Args:
        kind: which algorithm, or part of a program.
        chunk: steps that are done at once: a rollout, or an epoch of our trainer.
        env_id: what is trained on.
        num_envs: how many of them.
        batch_size: cells or transitions of a gradient step.
        repeat: how many times an update uses each cell of a rollout; 0 only collects.
        gradient_steps: off policy, of each env step.
        at_once: gradient steps of one call, without envs; 0 trains with them. Of on-policy data, it is one rollout.
        hidden_sizes: of every network.
        lr: learning rate of every optimizer.
        random_steps: env steps with random actions and without updates, before anything is timed.
        fill: share of a replay buffer that is full.
    """

    kind: str
    chunk: int
    env_id: str = "CartPole-v1"
    num_envs: int = 1
    batch_size: int = 256
    repeat: int = 1
    gradient_steps: int = 1
    at_once: int = 0
    hidden_sizes: tuple[int, ...] = (64, 64)
    lr: float = 3e-4
    random_steps: int = 0
    fill: float = 0.0

    @property
    def rollout_size(self) -> int:
        """Env steps of a rollout: a chunk, or as many as its gradient steps use."""
        return self.batch_size * self.at_once // self.repeat if self.at_once else self.chunk

    @property
    def has_images(self) -> bool:
        """True if observations are images: through the convolutions that each library has for them."""
        return self.env_id == IMAGES


IMAGES = "image_env:Images-v0"
GAMMA, GAE_LAMBDA, CLIP, VALUE_COEF, MAX_GRAD_NORM, TAU = 0.99, 0.95, 0.2, 0.5, 0.5, 0.005
DQN_EPSILON, DQN_TARGET_INTERVAL, DQN_MAX_GRAD_NORM = 0.1, 500, 10.0
REPLAY_SIZE = 50_000
"""Transitions in the buffer of an off-policy run; it does not fill up."""

OBS_SIZE, ACTION_SIZE = 17, 6
"""Of HalfCheetah."""
NUM_TRANSITIONS, EPISODE_LENGTH = 100_000, 1000
"""Of the offline data."""
BUFFER_SIZE, BUFFER_ENVS = 1_000_000, 16
"""Of the measurements of buffers."""

_ROLLOUT = {"chunk": 2048, "num_envs": 8}
_CHEETAH = {
    "env_id": "HalfCheetah-v5", "chunk": 200, "hidden_sizes": (256, 256), "random_steps": 400
}  # fmt: skip
_OFFLINE = {"chunk": 200, "hidden_sizes": (256, 256)}
_BUFFER = {"chunk": 500, "num_envs": BUFFER_ENVS}
_IMAGES = {"env_id": IMAGES, "hidden_sizes": ()}

WORKS = {
    "ppo-256x4": Work("ppo", batch_size=256, repeat=4, **_ROLLOUT),
    "ppo-64x10": Work("ppo", batch_size=64, repeat=10, **_ROLLOUT),
    "ppo-1024": Work("ppo", chunk=16_384, num_envs=1024, batch_size=1024, repeat=4),
    "collect": Work("ppo", repeat=0, **_ROLLOUT),
    "ppo-cheetah": Work("ppo", env_id="HalfCheetah-v5", batch_size=64, repeat=10, **_ROLLOUT),
    "a2c": Work("a2c", chunk=2000, num_envs=8, batch_size=40, lr=7e-4),
    "dqn": Work("dqn", chunk=500, batch_size=64, lr=1e-3, random_steps=1000),
    "sac": Work("sac", **_CHEETAH),
    "td3": Work("td3", lr=1e-3, **_CHEETAH),
    "dqn-4": Work("dqn", chunk=500, batch_size=64, lr=1e-3, random_steps=1000, gradient_steps=4),
    "sac-4": Work("sac", gradient_steps=4, **_CHEETAH),
    "td3bc": Work("td3bc", **_OFFLINE),
    "iql": Work("iql", **_OFFLINE),
    "bc": Work("bc", lr=1e-3, **_OFFLINE),
    "dqn-images": Work("dqn", chunk=100, batch_size=32, lr=1e-4, random_steps=1000, **_IMAGES),
    "ppo-images": Work("ppo", chunk=1024, num_envs=8, batch_size=256, repeat=4, lr=2.5e-4, **_IMAGES),
    "ppo-4096": Work("ppo", chunk=65_536, num_envs=4096, batch_size=16_384, repeat=4),
    "ppo-16384": Work("ppo", chunk=262_144, num_envs=16_384, batch_size=65_536, repeat=4),
    "ppo-updates-1": Work("ppo", chunk=320, num_envs=8, batch_size=256, repeat=1, at_once=1),
    "ppo-updates-32": Work("ppo", chunk=320, num_envs=8, batch_size=256, repeat=4, at_once=32),
    "add-10": Work("add", fill=0.1, **_BUFFER),
    "add-100": Work("add", fill=1.0, **_BUFFER),
    "sample-10": Work("sample", fill=0.1, **_BUFFER),
    "sample-100": Work("sample", fill=1.0, **_BUFFER),
}
for _name in ("sac", "td3", "dqn"):
    for _at_once in (1, 32):
        WORKS[f"{_name}-updates-{_at_once}"] = dataclasses.replace(WORKS[_name], at_once=_at_once, chunk=320)
A2C_ROLLOUT = 40
"""Env steps of A2C's rollouts: 8 envs x 5 steps."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the arguments that all programs take."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("work", choices=WORKS)
    result.add_argument("--warmup", type=int, default=0, help="steps before the clock starts; at least one chunk")
    result.add_argument("--steps", type=int, default=1, help="steps that are timed, rounded up to chunks")
    result.add_argument("--seed", type=int, default=1)
    result.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of networks and updates")
    return result


def measure(
    work: Work, advance: Callable[[int], int], args: argparse.Namespace, envs: object, packages: Sequence[str]
) -> None:
    """Warm up, time, and print the JSON line.

    Args:
        work: what is done.
        advance: does this many further steps; returns how many count.
        args: from `parser`.
        envs: the vector env; its class is printed.
        packages: whose versions are printed.
    """
    if work.random_steps and not work.at_once:
        advance(work.random_steps)
    started = time.perf_counter()
    advance(work.chunk)
    first = time.perf_counter() - started
    for _ in range(num_chunks(args.warmup, work) - 1):
        advance(work.chunk)
    started = time.perf_counter()
    steps = sum(advance(work.chunk) for _ in range(num_chunks(args.steps, work)))
    seconds = time.perf_counter() - started
    result = {
        "steps": steps,
        "seconds": seconds,
        "compile_seconds": first,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),
        "envs": "" if envs is None else type(envs).__name__,
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }
    print(json.dumps(result))


def num_chunks(steps: int, work: Work) -> int:
    """Return how many chunks reach so many steps."""
    return -(-steps // work.chunk)


def repeated(do_once: Callable[[], object]) -> Callable[[int], int]:
    """Return a function that does something so many times; each is one step."""

    def advance(steps: int) -> int:
        for _ in range(steps):
            do_once()
        return steps

    return advance
