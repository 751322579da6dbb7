"""An env of images that costs next to nothing to step. Needs gymnasium: `gym.make("image_env:Images-v0")`."""

from typing import Any

import gymnasium as gym
import numpy as np

EPISODE_LENGTH, NUM_IMAGES = 200, 64


class Images(gym.Env[np.ndarray, int]):
    """Shows random images [4, 84, 84] in turn, as Atari's four stacked frames; rewards the actions below the third."""

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if not hasattr(self, "images"):
            self.images = self.np_random.integers(0, 256, (NUM_IMAGES, 4, 84, 84), np.uint8)
        self.num_steps = 0
        return self.images[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.num_steps += 1
        obs = self.images[self.num_steps % NUM_IMAGES]
        return obs, float(action < 2), self.num_steps == EPISODE_LENGTH, False, {}


gym.register("Images-v0", Images)
