"""An env that sleeps in some of its steps, as engines do whose steps take unequally long."""

import time
from typing import Any

import gymnasium as gym


class Sleeping(gym.Wrapper[Any, Any, Any, Any]):
    """Sleeps for so many seconds in this share of its steps."""

    def __init__(self, env_id: str, share: float, seconds: float) -> None:
        super().__init__(gym.make(env_id, disable_env_checker=True))
        self.share, self.seconds = share, seconds

    def step(self, action: Any) -> Any:
        if self.unwrapped.np_random.random() < self.share:
            time.sleep(self.seconds)
        return super().step(action)
