"""Envs that take unequally long; importable in worker processes."""

import time
from pathlib import Path
from typing import Any

import numpy as np

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
