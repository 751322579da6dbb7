"""The rules of gymnasium's classic control envs, as functions of tensors."""

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.envs.tensors.tensor_env import TensorEnv

MAX_ANGLE = 12 * math.pi / 180  # of CartPole's pole


def _symmetric_box(*high: float) -> spaces.Box:
    return spaces.Box(-np.array(high, np.float32), np.array(high, np.float32))


# Each env equals gymnasium's under the same states and actions, to 1e-6 of a number or of 1. Near the bound of an
# episode's end float32 may decide differently, where the two differ by less than that.
class CartPole(TensorEnv):
    """CartPole-v1: balance a pole on a cart, which is pushed to the left or to the right."""

    observation_space = _symmetric_box(4.8, np.inf, 2 * MAX_ANGLE, np.inf)
    action_space = spaces.Discrete(2)
    max_episode_steps = 500
    num_first_uniforms = 4

    def first_state(self, uniform: Tensor) -> Tensor:
        """Return positions, velocities, angles and angular velocities in [-0.05, 0.05)."""
        return 0.1 * uniform - 0.05

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take an Euler step of 0.02 s; the episode ends beyond 2.4 m or 12 degrees."""
        _, velocity, angle, angular_velocity = state.unbind(-1)
        force = 20.0 * action.to(state.dtype) - 10.0
        cos, sin = angle.cos(), angle.sin()
        # The cart weighs 1, the pole 0.1, and half the pole's length is 0.5: so 1.1 in all, and 0.05 of mass x length.
        push = (force + 0.05 * angular_velocity.square() * sin) / 1.1
        angular_acceleration = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 / 1.1 * cos.square()))
        acceleration = push - 0.05 / 1.1 * angular_acceleration * cos
        change = torch.stack([velocity, acceleration, angular_velocity, angular_acceleration], -1)
        following = state + 0.02 * change
        terminated = (following[:, 0].abs() > 2.4) | (following[:, 2].abs() > MAX_ANGLE)
        return following, torch.ones_like(force), terminated
