"""Bit flipping: an env of goals that no one reaches by chance (Andrychowicz et al. 2017, section 3.1).

The state are n bits, an action flips one of them, and the goal is another state. The reward is 0 where it is reached,
which ends the episode, and -1 elsewhere; n steps are enough.
"""

from typing import Any

import gymnasium as gym
import numpy as np


class BitFlip(gym.Env[Any, Any]):
    """The env.

    Args:
        num_bits: n.
    """

    def __init__(self, num_bits: int = 8) -> None:
        bits = gym.spaces.MultiBinary(num_bits)
        self.observation_space = gym.spaces.Dict(observation=bits, achieved_goal=bits, desired_goal=bits)
        self.action_space = gym.spaces.Discrete(num_bits)
        self.num_bits = num_bits

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        self.bits = self.np_random.integers(0, 2, self.num_bits, np.int8)
        self.goal = self.bits.copy()
        while (self.goal == self.bits).all():
            self.goal = self.np_random.integers(0, 2, self.num_bits, np.int8)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.bits[action] ^= 1
        self.num_steps += 1
        reward, terminated = (f(self.bits, self.goal, {}) for f in (self.compute_reward, self.compute_terminated))
        return self._obs(), float(reward), bool(terminated), self.num_steps >= self.num_bits, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return self.compute_terminated(achieved_goal, desired_goal, info) - 1.0

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return (achieved_goal == desired_goal).all(-1)

    def _obs(self) -> Any:
        return {"observation": self.bits.copy(), "achieved_goal": self.bits.copy(), "desired_goal": self.goal.copy()}
