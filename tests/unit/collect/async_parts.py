"""Envs and policies that worker processes can import."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import rltrainer as rl
from tests.fakes import ScriptedOnPolicy, counting_envs
from tests.unit.collect.uneven_envs import GatedEnv

BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
WIDE = gym.spaces.Box(-1e6, 1e6, (3,), np.float32)


def pendulums(num_envs: int = 1, seed: int | None = None) -> Any:
    return rl.make_vec("Pendulum-v1", num_envs, seed=seed)


def counting(num_envs: int = 1, **options: Any) -> Any:
    return counting_envs(num_envs, seed=None, **options)


def wide(num_envs: int = 1, in_workers: bool = False) -> Any:
    return counting_envs(num_envs, None, in_workers, action_space=WIDE, length=1000)


def gated(gate: str) -> Any:
    return rl.make_vec(partial(GatedEnv, gate), 1)


class Constant(rl.Policy):
    """Acts by its weights: the least and the greatest of them, and their number of different values."""

    def __init__(self, *spaces: Any, size: int = 8) -> None:
        super().__init__(*spaces)
        self.weight = nn.Parameter(torch.zeros(size))
        self.register_buffer("more", torch.zeros(size, dtype=torch.float64))

    def set(self, value: float) -> None:
        with torch.no_grad():
            self.weight.fill_(value)
            self.more.fill_(value)  # type: ignore[operator]  # a buffer

    def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> rl.Decision:
        both = torch.cat([self.weight, self.more.float()])  # type: ignore[operator]  # a buffer
        row = torch.stack([both.min(), both.max(), torch.tensor(float(len(both.unique())))])
        return rl.Decision(row.repeat(len(obs), 1))


class Watching(ScriptedOnPolicy):
    """Sets the weights to the number of training steps; notes which versions and actions each of them is given."""

    def __init__(self, policy: Constant) -> None:
        super().__init__(policy)
        self.versions: list[set[int]] = []
        self.actions: list[set[float]] = []

    def process(self, rollout: rl.Rollout) -> Any:
        self.versions.append(set(rollout.extra["version"][rollout.valid].tolist()))
        self.actions.append(set(rollout.action[..., 0][rollout.valid].tolist()))
        self.policy.set(len(self.versions))
        return super().process(rollout)


def seven_training_steps(policy: Constant, collector: Any, **run_options: Any) -> Watching:
    """Train with a collector of two envs, and return what saw it."""
    algorithm = Watching(policy)
    params = rl.OnPolicyTrainerParams(
        training_collector=collector, max_epochs=1, epoch_num_steps=56, collection_step_num_env_steps=8,
        verbose=False, show_progress=False,
    )  # fmt: skip
    rl.OnPolicyTrainer(algorithm, params).run(**run_options)
    return algorithm


class TargetNoise:
    """Explores by a module of its own."""

    def __init__(self) -> None:
        self.target = nn.Linear(1, 1)

    def __call__(self, action: Tensor, space: Any, progress: float, generator: Any) -> Tensor:
        action = action.clone()
        action[:, 2] = self.target.bias.detach() + progress
        return action


class Refusing(rl.Policy):
    """Cannot travel."""

    def __init__(self, *spaces: Any) -> None:
        super().__init__(*spaces)
        self.weight = nn.Parameter(torch.zeros(1))
        self.function = lambda: None

    def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> rl.Decision:
        raise NotImplementedError
