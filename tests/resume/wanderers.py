"""Envs whose every number depends on the seed of the episode and on all actions since."""

import os
from typing import Any

import gymnasium as gym
import numpy as np

from rltrainer.types import State

BOX = gym.spaces.Box(-100.0, 100.0, (3,), np.float32)
DICT = gym.spaces.Dict({"place": BOX, "clock": gym.spaces.Discrete(10_000), "parts": gym.spaces.Tuple([BOX, BOX])})


class Wanderer(gym.Env[Any, Any]):
    """Walks at random, pushed by the actions; ends with probability 0.07 at each step, or after 30.

    Args:
        is_dict: whether it observes a Dict.
    """

    action_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)

    def __init__(self, is_dict: bool = False) -> None:
        self.observation_space = DICT if is_dict else BOX
        self.is_dict = is_dict
        self.num_resets = self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_resets += 1
        self.place, self.count = self.np_random.normal(size=3), 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        self.count += 1
        self.place = 0.9 * self.place + 0.3 * np.asarray(action, np.float64) + self.noise()
        ended = bool(self.np_random.random() < 0.07)
        return self.observe(), float(self.place.sum() / 3), ended, self.count >= 30, {"count": self.count}

    def noise(self) -> Any:
        return 0.1 * self.np_random.normal(size=3)

    def observe(self) -> Any:
        place = self.place.astype(np.float32)
        return {"place": place, "clock": self.count, "parts": (place * 2, place * 3)} if self.is_dict else place


class Stranger(Wanderer):
    """Takes numbers from where nobody can take them again."""

    def noise(self) -> Any:
        return np.frombuffer(os.urandom(3), np.uint8) / 255.0


class Moody(Wanderer):
    """Looks the same as ever, and rewards by the steps of all its episodes."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *rest = super().step(action)
        return obs, reward + 1e-3 * self.num_steps, *rest


class Saveable(Stranger):
    """Takes the same numbers, and saves where it is."""

    num_loads = 0

    def state_dict(self) -> State:
        state = self.np_random.bit_generator.state["state"]
        words = {name: str(value) for name, value in state.items()}
        return {"place": self.place.tolist(), "count": self.count, "words": words}

    def load_state_dict(self, state: State) -> None:
        self.num_loads += 1
        self.place, self.count = np.array(state["place"]), state["count"]
        words = {name: int(value) for name, value in state["words"].items()}
        self.np_random.bit_generator.state = self.np_random.bit_generator.state | {"state": words}

    def noise(self) -> Any:
        return 0.1 * self.np_random.normal(size=3)


class Fragile(Saveable):
    """Does not load what it saved."""

    def load_state_dict(self, state: State) -> None:
        raise KeyError("place")
