"""GIFs that are small enough for a page: half the size, some of the frames, several films beside each other."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image

import rltrainer as rl

GAP = 6
"""Pixels between films that are beside each other."""


class HalfSize(gym.Wrapper):
    """Renders in half the size."""

    def render(self) -> Any:
        frame = np.asarray(self.env.render())
        height, width = (2 * (size // 2) for size in frame.shape[:2])
        parts = frame[:height, :width].reshape(height // 2, 2, width // 2, 2, 3)
        return parts.mean((1, 3)).astype(np.uint8)


def film(player: Any, env: str, path: Path, *, every: int = 2, **options: Any) -> None:
    """Film an episode as a GIF that holds each so many frames, and plays as fast as the whole would.

    Args:
        player, env, path: see `rl.record`.
        every: which frames are kept.
        options: of `rl.record`: `seed`, `max_episode_steps`.
    """
    with tempfile.TemporaryDirectory() as folder, HalfSize(gym.make(env, render_mode="rgb_array")) as filmed:
        rl.record(player, filmed, Path(folder) / "whole.gif", **options)
        frames, milliseconds = read(Path(folder) / "whole.gif")
    write(path, frames[::every], every * milliseconds)


def read(path: Path) -> tuple[list[Image.Image], float]:
    """Return the frames of a GIF, and how long each is shown, in milliseconds."""
    with Image.open(path) as image:
        frames = []
        for index in range(getattr(image, "n_frames", 1)):
            image.seek(index)
            frames.append(image.convert("RGB"))
        return frames, image.info.get("duration", 20)


def beside(films: Sequence[Sequence[Image.Image]]) -> list[Image.Image]:
    """Return the frames of one film that shows several beside each other; those that are over stand still."""
    frames = []
    for index in range(max(map(len, films))):
        shown = [each[min(index, len(each) - 1)] for each in films]
        frame = Image.new("RGB", (sum(each.width + GAP for each in shown) - GAP, shown[0].height), "white")
        left = 0
        for each in shown:
            frame.paste(each, (left, 0))
            left += each.width + GAP
        frames.append(frame)
    return frames


def write(path: Path, frames: Sequence[Image.Image], milliseconds: float) -> None:
    """Write a GIF that runs for ever, and stands still for a second at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    durations = [milliseconds] * (len(frames) - 1) + [1000]
    few = [frame.quantize(32, dither=Image.Dither.NONE) for frame in frames]
    few[0].save(path, save_all=True, append_images=few[1:], duration=durations, loop=0, optimize=True)
