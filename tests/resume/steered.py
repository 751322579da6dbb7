"""An env in which everything matters: its random numbers, the actions, and how far its episode is."""

from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np

import rltrainer as rl

PLACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
STATE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
Kind = Literal["plain", "masked", "hindsight"]


def negative_distance(achieved: Any, desired: Any, info: Any) -> Any:
    """Return the reward of being somewhere where one should be elsewhere."""
    return -np.abs(achieved - desired).sum(-1)


class SteeredEnv(gym.Env[Any, Any]):
    """A point that actions push and chance moves; an episode ends by chance, or after 40 steps.

    Args:
        action_space: any space.
        kind: "masked" allows two of three discrete actions by turns, "hindsight" has a goal.
    """

    def __init__(self, action_space: Any, kind: Kind = "plain") -> None:
        self.kind, self.action_space, self.observation_space = kind, action_space, STATE
        if kind == "masked":
            self.action_space = gym.spaces.Discrete(3)
            self.observation_space = gym.spaces.Dict(state=STATE, action_mask=gym.spaces.MultiBinary(3))
        if kind == "hindsight":
            self.observation_space = gym.spaces.Dict(observation=STATE, achieved_goal=PLACE, desired_goal=PLACE)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal, self.num_steps = self.np_random.normal(size=2), self.np_random.normal(size=2), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        self.place = 0.9 * self.place + 0.1 * float(np.sum(action)) + 0.1 * self.np_random.normal(size=2)
        ends = bool(self.np_random.random() < 0.06)
        reward = float(negative_distance(self.place, self.goal, {}))
        return self._obs(), reward, ends, not ends and self.num_steps >= 40, {}

    def _obs(self) -> Any:
        state = np.array([*self.place, self.num_steps / 40], np.float32)
        if self.kind == "masked":
            return {"state": state, "action_mask": np.roll(np.array([1, 1, 0], np.int8), self.num_steps)}
        if self.kind == "hindsight":
            place, goal = self.place.astype(np.float32), self.goal.astype(np.float32)
            return {"observation": state, "achieved_goal": place, "desired_goal": goal}
        return state


def steered_envs(
    num_envs: int, action_space: Any, seed: int | None = None, kind: Kind = "plain", **options: Any
) -> Any:
    """Return a vector of them; the options are those of `make_vec`."""
    return rl.make_vec(partial(SteeredEnv, action_space, kind), num_envs, seed=seed, **options)
