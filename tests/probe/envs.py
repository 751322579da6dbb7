"""Probe envs: each has a known answer and can fail for one reason only (after rejax's tests).

All episodes are so short that a correct algorithm learns the answer in seconds.
"""

from typing import Any

import gymnasium as gym
import numpy as np

DISCRETE = gym.spaces.Discrete(2)
BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)


class ProbeEnv(gym.Env[Any, Any]):
    """An episode of `length` steps; observes a random sign, or 0 where nothing is to be seen."""

    length = 1
    sees_sign = False

    def __init__(self, continuous: bool) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = BOX if continuous else DISCRETE

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        self.sign = float(self.np_random.choice([-1.0, 1.0])) if self.sees_sign else 0.0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.reward(2.0 * action - 1.0 if self.action_space is DISCRETE else float(np.asarray(action)[0]))
        self.num_steps += 1
        return self._obs(), reward, self.num_steps >= self.length, False, {}

    def reward(self, action: float) -> float:
        raise NotImplementedError

    def _obs(self) -> Any:
        return np.array([self.sign], np.float32)


class Discounting(ProbeEnv):
    """Two steps, the reward is the sign and comes with the second: the first observation is worth gamma times it."""

    length = 2
    sees_sign = True

    def reward(self, action: float) -> float:
        return self.sign * self.num_steps

    def _obs(self) -> Any:
        return np.array([self.sign * (1 + self.num_steps) / 2], np.float32)


class FlagsFromObs(ProbeEnv):
    """Two flags: 1 for each that is right, the first one set where the sign is +1, the second where it is -1."""

    sees_sign = True

    def __init__(self) -> None:
        super().__init__(continuous=False)
        self.action_space = gym.spaces.MultiBinary(2)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        wanted = np.array([self.sign > 0, self.sign < 0])
        return self._obs(), float((action == wanted).sum()), True, False, {}


class ActionFromObs(ProbeEnv):
    """Reward for an action towards the observed sign: the best action is the observation."""

    sees_sign = True

    def reward(self, action: float) -> float:
        return action * self.sign
