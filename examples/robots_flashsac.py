"""FlashSAC on envs of tensors: 256 robot arms of two joints learn to reach, with a gradient step per 32 env steps."""

import argparse
import math

import gymnasium as gym
import torch
from torch import Tensor

import rltrainer as rl


class Reach(rl.TensorEnv):
    """Bring the hand of an arm to a target, and hold it there; the state has 2 angles, 2 velocities, 2 of the target."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (10,))
    action_space = gym.spaces.Box(-1.0, 1.0, (2,))
    max_episode_steps = 50
    num_first_uniforms = 4

    def first_state(self, uniform: Tensor) -> Tensor:
        angles = math.pi * (2.0 * uniform[:, :2] - 1.0)
        distance, direction = 0.3 + 1.5 * uniform[:, 2], 2.0 * math.pi * uniform[:, 3]
        target = distance[:, None] * torch.stack([direction.cos(), direction.sin()], -1)
        return torch.cat([angles, torch.zeros_like(angles), target], -1)

    def observe(self, state: Tensor) -> Tensor:
        angles, target = state[:, :2], state[:, 4:]
        return torch.cat([angles.cos(), angles.sin(), state[:, 2:4], target, target - self.hand(angles)], -1)

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        velocity = 0.9 * state[:, 2:4] + 0.5 * action  # friction, and torques of two motors
        angles = state[:, :2] + 0.1 * velocity
        following = torch.cat([angles, velocity, state[:, 4:]], -1)
        distance = (state[:, 4:] - self.hand(angles)).norm(dim=-1)
        return following, -distance - 0.05 * action.square().sum(-1), torch.zeros_like(distance, dtype=torch.bool)

    @staticmethod
    def hand(angles: Tensor) -> Tensor:
        """Return where the hand is [N, 2]: both links have length 1."""
        first, second = angles[:, 0], angles.sum(-1)
        return torch.stack([first.cos() + second.cos(), first.sin() + second.sin()], -1)
