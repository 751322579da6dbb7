"""Catch: a small game that must be seen to be played (Mnih et al. 2014, Recurrent Models of Visual Attention).

A ball falls from a random column of a 9 x 9 grid, a row at each step; a paddle in the last row moves left, stays or
moves right. At the end the reward is 1 if the paddle is below the ball, else -1. Each cell is drawn as 4 x 4 pixels.
"""

from typing import Any

import gymnasium as gym
import numpy as np

SIZE, PIXELS = 9, 4


class Catch(gym.Env[Any, Any]):
    """The game; an episode has eight steps.

    Args:
        layout: where the three channels of the image are: "hwc" for last, "chw" for first.
    """

    action_space = gym.spaces.Discrete(3)  # left, stay, right

    def __init__(self, layout: str = "hwc") -> None:
        height, channels = SIZE * PIXELS, 3
        shape = (height, height, channels) if layout == "hwc" else (channels, height, height)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.layout = layout

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row = 0
        self.ball, self.paddle = self.np_random.integers(SIZE, size=2).tolist()
        return self._image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.row += 1
        self.paddle = min(max(self.paddle + int(action) - 1, 0), SIZE - 1)
        has_landed = self.row == SIZE - 1
        reward = (1.0 if self.ball == self.paddle else -1.0) if has_landed else 0.0
        return self._image(), reward, has_landed, False, {}

    def _image(self) -> Any:
        grid = np.zeros((SIZE, SIZE, 3), np.uint8)
        grid[self.row, self.ball, 0] = 255
        grid[-1, self.paddle, 1] = 255
        image = grid.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)
        return image if self.layout == "hwc" else np.ascontiguousarray(image.transpose(2, 0, 1))
