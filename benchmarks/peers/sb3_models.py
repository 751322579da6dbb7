"""The use of a model of Stable-Baselines3 or of SBX, which have the same methods."""

from collections.abc import Callable
from typing import Any

import task


def training(model: Any) -> Callable[[int], int]:
    """Return what trains for so many env steps."""

    def advance(steps: int) -> int:
        model.learn(steps, reset_num_timesteps=False)
        return steps

    return advance


def updates(model: Any, work: task.Work) -> Callable[[int], int]:
    """Return what takes so many gradient steps on data that is collected once, by random actions off policy."""
    is_on_policy = work.kind == "ppo"
    model.learn(work.rollout_size if is_on_policy else work.random_steps)

    def advance(steps: int) -> int:
        for _ in range(steps // work.at_once):
            if is_on_policy:
                model.train()
            else:
                model.train(gradient_steps=work.at_once, batch_size=work.batch_size)
        return steps

    return advance
