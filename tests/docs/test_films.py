"""The films of the docs play at the speed of the envs they show."""

import statistics
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from pictures import films

DOCS = Path(films.__file__).parents[1] / "docs"
FILMS = sorted(DOCS.rglob("*.gif"))


def test_every_film_of_the_docs_moves() -> None:
    assert DOCS / "images" / "lander.gif" in FILMS
    assert len(FILMS) >= 6
    for path in FILMS:
        frames, milliseconds = films.read(path)
        assert len(frames) > 20, path
        assert 20 <= statistics.median(milliseconds) <= 150, path  # 7 to 50 frames a second
        assert max(milliseconds[:-1]) <= 500, path  # equal frames are one frame that is shown for longer
        assert sum(milliseconds) <= 15_000, path


def numbered(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (8, 8), (50 * number, 0, 0)) for number in range(count)]


def test_read_returns_how_long_each_frame_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "film.gif"
    films.write(path, numbered(3), 66.7)
    frames, milliseconds = films.read(path)
    assert len(frames) == 3
    assert milliseconds == [70, 70, 1000]  # hundredths of a second, rounded; then it stands still


def test_fewer_frames_keep_the_pace_of_the_whole_film(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(player: str, env: gym.Env, path: Path, *, seed: int) -> None:
        first, *rest = numbered(5)
        first.save(path, save_all=True, append_images=rest, duration=[30, 30, 40, 30, 1000])

    class Still(gym.Env):
        def render(self) -> np.ndarray:
            return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr(films.rl, "record", record)
    monkeypatch.setattr(films.gym, "make", lambda env, render_mode: Still())
    frames, milliseconds = films.filmed("a policy", "an env", every=2, seed=1)
    assert len(frames) == 3
    assert milliseconds == pytest.approx(65)  # of 30, 30, 40, 30; the end stands still
