"""Trainings that a sweep varies, which processes import from here; as a program, a sweep that can be killed."""

import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

import rltrainer as rl
from tests.fakes import counting_envs, tiny_actor_critic

SPACE = {"lr": rl.LogUniform(1e-4, 1e-1), "gamma": [0.9, 0.99], "height": rl.Uniform(0.0, 100.0)}
FAILS_LATE = -13.0
"""The height of a trial that fails when it has checkpoints."""


def make_trainer(
    seed: int, height: float = 0.0, lr: float = 1e-3, gamma: float = 0.99, notes: Path | None = None,
    pause: float = 0.0, max_epochs: int = 6, has_tests: bool = True, **fields: Any,
) -> Any:  # fmt: skip
    """Return the trainer of a tiny PPO, whose test steps score `height + seed`, more in each epoch.

    It notes its process, and each training step, in a file.
    """
    envs = counting_envs(2)
    algorithm = rl.PPO(tiny_actor_critic(envs), rl.PPOParams(lr=lr, gamma=gamma))
    tested: list[int] = []

    def note(epoch: int, env_step: int) -> None:
        if notes is not None:
            with open(notes, "a") as file:
                file.write(f"{os.getpid()} {height} {env_step}\n")
        time.sleep(pause)
        if height == FAILS_LATE and epoch == 3:
            raise ValueError("it failed late")

    tests: dict[str, Any] = {
        "test_collector": rl.Collector(algorithm.policy, counting_envs(2)),
        "test_fn": lambda epoch, env_step: tested.append(epoch),
        "compute_score_fn": lambda stats: height + seed + tested[-1],
    }
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs), max_epochs=max_epochs, epoch_num_steps=20,
        collection_step_num_env_steps=10, seed=seed, training_fn=note, runtime=rl.RuntimeParams(compile=False),
        **(tests if has_tests else {}), **fields,
    )  # fmt: skip
    return rl.OnPolicyTrainer(algorithm, params)


def score(seed: int, height: float = 0.0, **fields: Any) -> Any:
    """Return a score without a trainer; or what is none, or nothing, as it fails or dies."""
    match height:
        case 1:
            raise ValueError(f"{height} is too high")
        case 2:
            os._exit(7)
        case 3:
            return "three"
        case 4:
            return float("nan")
    return height + seed


def sweep(path: Path, **arguments: Any) -> rl.SweepResult:
    """Return what a sweep of seven trials comes to, the same each time."""
    make = functools.partial(make_trainer, notes=path.with_suffix(".notes"), pause=float(arguments.pop("pause", 0.0)))
    return rl.sweep(make, SPACE, folder=path, num_trials=7, num_processes=1, show_progress=False, **arguments)


if __name__ == "__main__":
    sweep(Path(sys.argv[1]), pause=0.1, num_seeds=2)
