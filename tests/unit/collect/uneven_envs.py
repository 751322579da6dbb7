"""Envs that take unequally long; importable in worker processes."""

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from tests.fakes import CountingEnv


class PacedEnv(CountingEnv):
    """Every step takes `seconds`; else a `CountingEnv`, whose reward also tells the action."""

    def __init__(self, seconds: float = 0.0, length: int = 5, **options: Any) -> None:
        super().__init__(length=length, **options)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        obs, _, *rest = super().step(action)
        return obs, self.step_count + 100.0 * float(np.sum(action)), *rest


class GatedEnv(CountingEnv):
    """Its steps from the second on end when the file `gate` is there."""

    def __init__(self, gate: str, length: int = 1000) -> None:
        super().__init__(length=length)
        self.gate = Path(gate)

    def step(self, action: Any) -> Any:
        while self.step_count and not self.gate.exists():
            time.sleep(0.002)
        return super().step(action)


class GrowingEnv(CountingEnv):
    """Episodes of 1, 2, 3, 4, 1, 2, ... steps."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.length = self.num_resets % 4 + 1
        return super().reset(seed=seed, options=options)


class MaskedEnv(gym.Env[Any, Any]):
    """A Dict observation whose mask allows one choice in each state; raises at others. Final ones allow none."""

    def __init__(self, length: int = 3, stuck: int | None = None) -> None:
        self.observation_space = spaces.Dict(
            action_mask=spaces.MultiBinary(4), count=spaces.Box(0.0, 100.0, (1,)), kind=spaces.Discrete(3)
        )
        self.action_space = spaces.Discrete(4, start=1)
        self.length, self.stuck = length, stuck

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.first = 0, int(self.np_random.integers(4))
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert action - 1 == (self.first + self.count) % 4, f"{action} is not allowed"
        self.count += 1
        return self._obs(), 1.0, self.count >= self.length, False, {"count": self.count}

    def _obs(self) -> Any:
        mask = np.arange(4) == (self.first + self.count) % 4
        if self.count in (self.length, self.stuck):
            mask[:] = False
        return {
            "action_mask": mask.astype(np.int8),
            "count": np.array([self.count], np.float32),
            "kind": self.first % 3,
        }
