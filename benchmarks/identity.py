"""Identity with invalid actions: repeat the number that is seen, of 70; 55 others are not allowed at each step.

After the test env of Stable-Baselines3-contrib's MaskablePPO (`InvalidActionEnvDiscrete`): an episode has 100 steps,
the reward is 1 for the right action. A random choice among the 15 allowed ones gets 6.7 of 100.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Identity(gym.Env[Any, Any]):
    """Observes a number; the action that repeats it is right.

    Args:
        is_masked: observations say what is allowed; otherwise what is not is only wrong.
        num_actions: how many numbers there are.
        num_invalid: how many of them are not allowed at a step.
    """

    def __init__(self, is_masked: bool = True, num_actions: int = 70, num_invalid: int = 55) -> None:
        self.is_masked, self.num_actions, self.num_invalid = is_masked, num_actions, num_invalid
        self.action_space = spaces.Discrete(num_actions)
        parts: dict[str, Any] = {"number": spaces.Discrete(num_actions)}
        parts |= {"action_mask": spaces.MultiBinary(num_actions)} if is_masked else {}
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert not self.is_masked or self.mask[action], f"{action} is not allowed"
        self.num_steps += 1
        reward = float(action == self.number)
        return self._next(), reward, False, self.num_steps == 100, {}

    def _next(self) -> Any:
        self.number = int(self.np_random.integers(self.num_actions))
        others = np.delete(np.arange(self.num_actions), self.number)
        self.mask = np.ones(self.num_actions, np.int8)
        self.mask[self.np_random.choice(others, self.num_invalid, replace=False)] = 0
        return {"number": self.number, **({"action_mask": self.mask} if self.is_masked else {})}
