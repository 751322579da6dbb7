"""A chain whose only reward is at its end: what exploration without a plan does not find."""

from typing import Any

import gymnasium as gym
import numpy as np

LENGTH = 20
FORWARD = np.random.RandomState(7).randint(0, 2, LENGTH)
"""The action that leads on from each place; the other one leads back to the start."""


class Chain(gym.Env[np.ndarray, np.int64]):
    """Twenty places, one action of two leads on from each, and the last place ends the episode with reward 1.

    Random actions reach it in one of half a million attempts. An episode has at most 40 steps.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (LENGTH,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = self.num_steps = 0
        return self.observation(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.place = self.place + 1 if action == FORWARD[self.place] else 0
        self.num_steps += 1
        is_last = self.place == LENGTH - 1
        return self.observation(), float(is_last), is_last, self.num_steps >= 40, {}

    def observation(self) -> np.ndarray:
        return np.eye(LENGTH, dtype=np.float32)[self.place]
