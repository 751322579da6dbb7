"""Runs that are killed at any moment: each of their lives is a process of its own, and goes on where it can."""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

import rltrainer as rl
from tests.resume.runs import build, digest
from tests.resume.steered import steered_envs
from tests.resume.test_rows import rows
from tests.unit.envs.agents.teams import Visitors

LONGEST = 300.0
"""Seconds that a life may take, on a busy machine."""

COMING_AND_GOING = partial(Visitors, {"a": (2, 9), "b": (0, 13)}, ("b",))


def agents(num_envs: int, action_space: Any, seed: int | None = None) -> Any:
    return rl.AgentsAsEnvs(COMING_AND_GOING, num_envs // 2, agent_id=True)


def joint(num_envs: int, action_space: Any, seed: int | None = None) -> Any:
    return rl.make_vec(lambda: rl.JointEnv(COMING_AND_GOING()), num_envs, backend="sync")


def tensors(num_envs: int, action_space: Any, seed: int | None = None) -> Any:
    env = "Pendulum-v1" if isinstance(action_space, gym.spaces.Box) else "CartPole-v1"
    return rl.make_vec(env, num_envs, backend="tensor")


MORE: dict[str, Callable[[], dict[str, Any]]] = {
    "accumulated": lambda: {"update": rl.UpdateParams(accumulate=3, max_grad_norm=0.5)},
    "fp16": lambda: {
        "precision": rl.PrecisionParams(amp="fp16", initial_loss_scale=2.0**20, loss_scale_growth_interval=3),
        "runtime": rl.RuntimeParams(compile=False),
    },
    "hooks": lambda: {"hooks": (rl.RewardNormalizer(), rl.EarlyStopping(patience=10_000))},
    "agents": lambda: {"make_envs": agents, "num_envs": 4},
    "joint": lambda: {"make_envs": joint},
    "tensors": lambda: {"make_envs": tensors},
    "windows": lambda: {"hooks": (rl.BatchSubSampler(8, 2), rl.EarlyStopping("return", patience=10_000))},
}
"""Further fields of a trainer's params."""
MORE_RUNS = [
    ("ppo_masked", ""), ("recurrent_ppo_masked", ""), ("dqn_masked", ""), ("dqn_hindsight", ""),
    ("ppo", "accumulated"), ("sac", "accumulated"), ("offline_iql", "accumulated"),
    ("ppo_midway", "agents"), ("recurrent_ppo_midway", "agents"), ("dqn_midway", "agents"), ("ppo_midway", "joint"),
    ("ppo_midway", "tensors"), ("recurrent_ppo_midway", "tensors"), ("dqn_midway", "tensors"),
    ("sac_midway", "tensors"), ("reinforce_episodes", "tensors"),
    ("ppo", "fp16"), ("td3", "fp16"), ("ppo", "hooks"), ("ppo", "windows"), ("td3", "hooks"), ("offline_bc", "hooks"),
]  # fmt: skip
"""What is in none of `RUNS`: a run, and a key of `MORE`."""


def start(
    name: str, folder: Path, num_envs: int = 2, max_epochs: int = 12, more: str = "", backend: str = "sync",
    start_method: str | None = None,
) -> Any:  # fmt: skip
    """Return a trainer that saves every third training step, in the middle of its episodes."""
    envs = {"num_envs": num_envs, "make_envs": partial(steered_envs, backend=backend, start_method=start_method)}
    logger = rl.JSONLinesLogger(folder / "log.jsonl", training_interval=1, update_interval=1, strict=True)
    checkpoint = rl.CheckpointParams(folder / "checkpoints", every=rl.Every(3, "training_step"))
    return build(name, max_epochs, logger, checkpoint=checkpoint, **envs | (MORE[more]() if more else {}))


def live(name: str, folder: Path, delay: float | None, options: dict[str, Any]) -> None:
    """Run until the end, or until a SIGKILL after a delay; write what the run has come to."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    trainer = start(name, folder, **options)
    if delay is not None:
        threading.Thread(target=_kill_after, args=(delay,), daemon=True).start()
    began = time.perf_counter()
    trainer.run()
    seconds = time.perf_counter() - began
    (folder / "result").write_text(f"{digest(trainer)} {seconds} {trainer.params.logger.path}")


def _kill_after(delay: float) -> None:
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)


def outcome(name: str, folder: Path, delays: list[float], **options: Any) -> tuple[str, Path, float, int]:
    """Return the digest of a run, its log, the seconds of its last life, and how many kills hit it.

    Each life is killed after the next of `delays`, unless it ends before; the one after them is left alone.
    """
    num_kills = 0
    for delay in [*delays, None]:
        process = multiprocessing.get_context("forkserver").Process(target=live, args=(name, folder, delay, options))
        process.start()
        process.join(LONGEST)
        if process.exitcode == 0:
            break
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"{name}: a life took longer than {LONGEST:g} seconds")
        assert process.exitcode == -signal.SIGKILL, f"{name}: a life ended with {process.exitcode}"
        num_kills += 1
    found, seconds, log = (folder / "result").read_text().split(" ", 2)
    return found, Path(log), float(seconds), num_kills


def check(name: str, folder: Path, num_kills: int, chance: random.Random, **options: Any) -> int:
    """Assert that a run that is killed comes to what an untroubled one comes to, and its log; return the kills."""
    whole, log, life, _ = outcome(name, folder / "whole", [], **options)
    delays = [chance.uniform(0.0, 0.8 * life) for _ in range(num_kills)]
    found, its_log, _, num_hits = outcome(name, folder / "killed", delays, **options)
    assert found == whole, (name, options, delays)
    assert rows(its_log) == rows(log), (name, options, delays)
    return num_hits


if __name__ == "__main__":  # a long run: NAME FOLDER BACKEND
    live(sys.argv[1], Path(sys.argv[2]), None, {"backend": sys.argv[3], "max_epochs": 2000})
