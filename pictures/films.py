"""GIFs that are small enough for a page: half the size, some of the frames, several films beside each other."""

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageSequence

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
    """Film an episode as a GIF of every n-th frame that plays at the speed of the whole.

    Args:
        player, env, path: see `rl.record`.
        every: which frames are kept.
        options: of `rl.record`: `seed`, `max_episode_steps`.
    """
    write(path, *filmed(player, env, every=every, **options))


def filmed(player: Any, env: str, *, every: int = 2, **options: Any) -> tuple[list[Image.Image], float]:
    """Return every n-th frame of an episode, and for how many milliseconds each is shown."""
    with tempfile.TemporaryDirectory() as folder, HalfSize(gym.make(env, render_mode="rgb_array")) as half:
        rl.record(player, half, Path(folder) / "whole.gif", **options)
        frames, milliseconds = read(Path(folder) / "whole.gif")
    return frames[::every], every * statistics.mean(milliseconds[:-1])


def read(path: Path) -> tuple[list[Image.Image], list[float]]:
    """Return the frames of a GIF, and for how many milliseconds each of them is shown."""
    with Image.open(path) as image:
        shown = [(each.convert("RGB"), each.info.get("duration", 0.0)) for each in ImageSequence.Iterator(image)]
    return [frame for frame, _ in shown], [milliseconds for _, milliseconds in shown]


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


def labelled(frames: Sequence[Image.Image], text: str) -> list[Image.Image]:
    """Return the frames with a text in their upper left corner."""
    font, made = ImageFont.load_default(size=16), [frame.copy() for frame in frames]
    for frame in made:
        ImageDraw.Draw(frame).text((8, 6), text, "white", font, stroke_width=1, stroke_fill="black")
    return made


def write(path: Path, frames: Sequence[Image.Image], milliseconds: float) -> None:
    """Write a GIF that runs for ever, and stands still for a second at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    durations = [10 * round(milliseconds / 10)] * (len(frames) - 1) + [1000]  # a GIF counts hundredths of a second
    few = [frame.quantize(32, dither=Image.Dither.NONE) for frame in frames]
    few[0].save(path, save_all=True, append_images=few[1:], duration=durations, loop=0, optimize=True)
