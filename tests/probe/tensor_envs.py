"""The probe envs of `envs.py` as functions of tensors; a state is the sign and the number of steps [N, 2]."""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

import rltrainer as rl
from tests.probe.envs import BOX, DISCRETE


class TensorProbe(rl.TensorEnv):
    """An episode of `length` steps; observes a random sign, or 0 where nothing is to be seen."""

    length = 1
    sees_sign = False
    num_first_uniforms = 1
    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, continuous: bool) -> None:
        self.action_space = BOX if continuous else DISCRETE

    def first_state(self, uniform: Tensor) -> Tensor:
        sign = torch.where(uniform < 0.5, -1.0, 1.0) if self.sees_sign else torch.zeros_like(uniform)
        return torch.cat([sign, torch.zeros_like(uniform)], -1)

    def observe(self, state: Tensor) -> Tensor:
        return state[:, :1]

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        sign, num_steps = state.unbind(-1)
        reward = self.reward(sign, num_steps, action[:, 0] if action.ndim == 2 else 2.0 * action - 1.0)
        return torch.stack([sign, num_steps + 1.0], -1), reward, num_steps + 1.0 >= self.length

    def reward(self, sign: Tensor, num_steps: Tensor, action: Tensor) -> Tensor:
        raise NotImplementedError


class Discounting(TensorProbe):
    """Two steps, the reward is the sign and comes with the second: the first observation is worth gamma times it."""

    length = 2
    sees_sign = True

    def observe(self, state: Tensor) -> Tensor:
        return state[:, :1] * (1.0 + state[:, 1:]) / 2.0

    def reward(self, sign: Tensor, num_steps: Tensor, action: Tensor) -> Tensor:
        return sign * num_steps


class ActionFromObs(TensorProbe):
    """Reward for an action towards the observed sign: the best action is the observation."""

    sees_sign = True

    def reward(self, sign: Tensor, num_steps: Tensor, action: Tensor) -> Tensor:
        return action * sign
