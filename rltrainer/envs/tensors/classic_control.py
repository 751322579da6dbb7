"""The rules of gymnasium's classic control envs, as functions of tensors."""

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.envs.tensors.tensor_env import TensorEnv

# Each env equals gymnasium's under the same states and actions, to 1e-6 of a number or of 1. If float32 rounds a number
# to the other side of a bound, an episode ends one step earlier or later.


def _symmetric_box(*high: float) -> spaces.Box:
    return spaces.Box(-np.array(high, np.float32), np.array(high, np.float32))


def _wrapped(angle: Tensor) -> Tensor:
    """Return angles in [-pi, pi]."""
    return angle - 2 * math.pi * torch.round(angle / (2 * math.pi))


class CartPole(TensorEnv):
    """CartPole-v1: balance a pole on a cart, which is pushed to the left or to the right."""

    max_angle = 12 * math.pi / 180
    observation_space = _symmetric_box(4.8, np.inf, 2 * max_angle, np.inf)
    action_space = spaces.Discrete(2)
    max_episode_steps = 500
    num_first_uniforms = 4

    def first_state(self, uniform: Tensor) -> Tensor:
        """Return position, velocity, angle and angular velocity [N, 4], each in [-0.05, 0.05)."""
        return 0.1 * uniform - 0.05

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take an Euler step of 0.02 s from state [N, 4]; the episode ends beyond 2.4 m or 12 degrees."""
        _, velocity, angle, angular_velocity = state.unbind(-1)
        force = 20.0 * action.to(state.dtype) - 10.0
        cos, sin = angle.cos(), angle.sin()
        # The cart weighs 1 kg and the pole 0.1 kg, so 1.1 kg in all; half the pole is 0.5 m, and 0.1 kg of this 0.05.
        push = (force + 0.05 * angular_velocity.square() * sin) / 1.1
        angular_acceleration = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 / 1.1 * cos.square()))
        acceleration = push - 0.05 / 1.1 * angular_acceleration * cos
        change = torch.stack([velocity, acceleration, angular_velocity, angular_acceleration], -1)
        following = state + 0.02 * change
        terminated = (following[:, 0].abs() > 2.4) | (following[:, 2].abs() > self.max_angle)
        return following, torch.ones_like(force), terminated


class Pendulum(TensorEnv):
    """Pendulum-v1: swing a pendulum up and keep it there, by a torque that is too weak to lift it at once."""

    observation_space = _symmetric_box(1.0, 1.0, 8.0)
    action_space = spaces.Box(-2.0, 2.0, (1,))
    max_episode_steps = 200
    num_first_uniforms = 2

    def first_state(self, uniform: Tensor) -> Tensor:
        """Return an angle in [-pi, pi) and an angular velocity in [-1, 1): [N, 2]."""
        angle, velocity = (2.0 * uniform - 1.0).unbind(-1)
        return torch.stack([math.pi * angle, velocity], -1)

    def observe(self, state: Tensor) -> Tensor:
        """Return the cosine and sine of the angle, and the angular velocity [N, 3]."""
        angle, velocity = state.unbind(-1)
        return torch.stack([angle.cos(), angle.sin(), velocity], -1)

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take a step of 0.05 s from state [N, 2]."""
        angle, velocity = state.unbind(-1)
        # gymnasium's angle grows with each turn, and float32 would lose digits.
        angle = _wrapped(angle)
        torque = action[:, 0].clamp(-2.0, 2.0)
        cost = angle.square() + 0.1 * velocity.square() + 0.001 * torque.square()
        velocity = (velocity + 0.05 * (15.0 * angle.sin() + 3.0 * torque)).clamp(-8.0, 8.0)
        following = torch.stack([angle + 0.05 * velocity, velocity], -1)
        return following, -cost, torch.zeros_like(cost, dtype=torch.bool)


class Acrobot(TensorEnv):
    """Acrobot-v1: swing the lower of two links above a line, by a torque on the joint between them."""

    observation_space = _symmetric_box(1.0, 1.0, 1.0, 1.0, 4 * math.pi, 9 * math.pi)
    action_space = spaces.Discrete(3)
    max_episode_steps = 500
    num_first_uniforms = 4

    def first_state(self, uniform: Tensor) -> Tensor:
        """Return two angles and two angular velocities [N, 4], each in [-0.1, 0.1)."""
        return 0.2 * uniform - 0.1

    def observe(self, state: Tensor) -> Tensor:
        """Return the cosine and sine of both angles, and the angular velocities [N, 6]."""
        first, second, *velocities = state.unbind(-1)
        return torch.stack([first.cos(), first.sin(), second.cos(), second.sin(), *velocities], -1)

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take a Runge-Kutta step of 0.2 s from state [N, 4]; the end is the tip one link above the upper joint."""
        # At high velocities one step enlarges rounding errors a thousandfold: float32 would be off by up to 1e-3.
        y, torque = state.double(), action - 1
        k1 = self._derivative(y, torque)
        k2 = self._derivative(y + 0.1 * k1, torque)
        k3 = self._derivative(y + 0.1 * k2, torque)
        k4 = self._derivative(y + 0.2 * k3, torque)
        first, second, *velocities = (y + 0.2 / 6.0 * (k1 + 2.0 * (k2 + k3) + k4)).unbind(-1)
        velocities = [v.clamp(-high, high) for v, high in zip(velocities, (4 * math.pi, 9 * math.pi), strict=True)]
        terminated = -first.cos() - (first + second).cos() > 1.0
        following = torch.stack([_wrapped(first), _wrapped(second), *velocities], -1).to(state.dtype)
        return following, terminated.to(state.dtype) - 1.0, terminated

    def _derivative(self, state: Tensor, torque: Tensor) -> Tensor:
        """Return the change of a state per second, by the equations of Sutton and Barto's book."""
        # Each link weighs 1 kg, is 1 m long, and has its centre of mass in the middle and a moment of inertia of 1.
        first, second, first_velocity, second_velocity = state.unbind(-1)
        cos, sin = second.cos(), second.sin()
        d1, d2 = 3.5 + cos, 1.25 + 0.5 * cos
        phi2 = 4.9 * (first + second).sin()
        phi1 = 14.7 * first.sin() + phi2 - (0.5 * second_velocity + first_velocity) * second_velocity * sin
        push = torque + d2 / d1 * phi1 - 0.5 * first_velocity.square() * sin - phi2
        second_acceleration = push / (1.25 - d2.square() / d1)
        first_acceleration = -(d2 * second_acceleration + phi1) / d1
        return torch.stack([first_velocity, second_velocity, first_acceleration, second_acceleration], -1)


class MountainCar(TensorEnv):
    """MountainCar-v0: drive out of a valley with an engine that is too weak to climb the hill at once."""

    observation_space = spaces.Box(np.array([-1.2, -0.07], np.float32), np.array([0.6, 0.07], np.float32))
    action_space: spaces.Discrete | spaces.Box = spaces.Discrete(3)
    max_episode_steps = 200
    num_first_uniforms = 1
    goal = 0.5

    def first_state(self, uniform: Tensor) -> Tensor:
        """Return a position in [-0.6, -0.4), and the velocity 0: [N, 2]."""
        return torch.cat([0.2 * uniform - 0.6, torch.zeros_like(uniform)], -1)

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take one step from state [N, 2]; the episode ends at the goal."""
        following, terminated = self._drive(state, 0.001 * (action.to(state.dtype) - 1.0))
        return following, torch.full_like(state[:, 0], -1.0), terminated

    def _drive(self, state: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
        position, velocity = state.unbind(-1)
        velocity = (velocity + push - 0.0025 * (3.0 * position).cos()).clamp(-0.07, 0.07)
        position = (position + velocity).clamp(-1.2, 0.6)
        velocity = velocity.masked_fill((position <= -1.2) & (velocity < 0.0), 0.0)  # the wall on the left
        return torch.stack([position, velocity], -1), (position >= self.goal) & (velocity >= 0.0)


class MountainCarContinuous(MountainCar):
    """MountainCarContinuous-v0: the same valley, an engine of any strength, and a reward for little of it."""

    action_space = spaces.Box(-1.0, 1.0, (1,))
    max_episode_steps = 999
    goal = 0.45

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take one step from state [N, 2]; the goal is worth 100, and ends the episode."""
        force = action[:, 0]
        following, terminated = self._drive(state, 0.0015 * force.clamp(-1.0, 1.0))
        return following, 100.0 * terminated.to(state.dtype) - 0.1 * force.square(), terminated
