"""The picture of a buffer, asked of Matplotlib's own objects."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rltrainer.data import ReplayBuffer
from rltrainer.errors import ReplayBufferError
from rltrainer.tools.plots import buffer_overview
from rltrainer.tools.plots.figures import COLORS
from tests.unit.data.reference import Cell, add_step, make_buffer
from tests.unit.tools.refusals import refuses


def axes_of(figure: Figure, tmp_path: Path) -> list[Axes]:
    """Return the axes of a figure, which can be saved."""
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    return figure.axes


def buffer_of(actions: Any, space: gym.Space[Any]) -> ReplayBuffer:
    size = len(actions)
    return ReplayBuffer.from_arrays(
        observations=np.zeros((size, 1)), actions=np.asarray(actions), rewards=np.ones(size),
        terminations=np.arange(size) == size - 1, truncations=np.zeros(size, bool),
        observation_space=gym.spaces.Box(-1, 1, (1,)), action_space=space,
    )  # fmt: skip


def test_returns_and_lengths_by_how_episodes_end(tmp_path: Path) -> None:
    buffer = make_buffer(100)
    # Two episodes of one step and return 1 terminate, one of two steps and return 6 is truncated, one goes on.
    for obs, reward, end in [(0, 1.0, "t"), (2, 1.0, "t"), (4, 2.0, ""), (5, 4.0, "u"), (7, 9.0, "")]:
        add_step(buffer, None, [Cell(obs, obs % 5, reward, obs + 1, end == "t", end == "u")])
    figure = buffer_overview.buffer(buffer)
    returns, lengths, actions = axes_of(figure, tmp_path)
    assert figure.get_suptitle() == "5 transitions, 3 episodes"
    for axes, end in ((returns, 6.0), (lengths, 2.0)):
        bars = [(bar.get_x(), bar.get_height(), bar.get_facecolor()) for bar in axes.patches if bar.get_height()]
        heights = {(round(x, 2) == 1.0, height) for x, height, _ in bars}
        assert heights == {(True, 2), (False, 1)}
        assert bars[1][0] + axes.patches[0].get_width() == pytest.approx(end)
        assert bars[0][2] != bars[1][2]
    assert [text.get_text() for text in lengths.get_legend().get_texts()] == ["terminated", "truncated"]
    assert (returns.get_xlabel(), returns.get_ylabel(), lengths.get_xlabel()) == ("return", "episodes", "length")
    # Observations 0 2 4 5 7 were left by actions 0 2 4 0 2.
    assert [bar.get_height() for bar in actions.patches] == pytest.approx([0.4, 0, 0.4, 0, 0.2])
    assert actions.get_xlabel() == "choice"


def test_ranges_within_their_bounds(tmp_path: Path) -> None:
    space = gym.spaces.Box(np.array([-1, -np.inf], np.float32), np.array([3, np.inf], np.float32))
    axes = axes_of(buffer_overview.buffer(buffer_of([[0, 5], [2, 7]], space), "mine"), tmp_path)[2]
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(-1, 4), (0, 2), (5, 2)]
    assert axes.get_xlabel() == "range used of the bounds"
    assert axes.get_xlim()[0] < -1


def test_lengths_and_choices_are_whole_numbers(tmp_path: Path) -> None:
    """Also where all episodes have one length, and where there are two choices."""
    _, lengths, choices = axes_of(buffer_overview.buffer(buffer_of([0, 1], gym.spaces.Discrete(2))), tmp_path)
    for axes, expected in ((lengths, {1, 2, 3}), (choices, {0, 1})):
        low, high = axes.get_xlim()
        assert {tick for tick in axes.get_xticks() if low <= tick <= high} == expected


def test_choices_of_several_numbers_and_many_ranges(tmp_path: Path) -> None:
    several = buffer_of([[0, 2], [1, 2]], gym.spaces.MultiDiscrete([2, 3]))
    axes = axes_of(buffer_overview.buffer(several), tmp_path)[2]
    assert [bar.get_height() for bar in axes.patches] == [0.5, 0.5, 0, 0, 1]
    assert {bar.get_facecolor()[:3] for bar in axes.patches} == {
        tuple(int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)) for color in COLORS[:2]
    }
    assert axes.get_xlabel() == "choice of each of 2 numbers"
    many = buffer_of(np.zeros((2, 30)), gym.spaces.Box(-1, 1, (30,)))
    axes = axes_of(buffer_overview.buffer(many), tmp_path)[2]
    assert len(axes.patches) == 48
    assert axes.get_xlabel() == "range used of the first"


def test_a_buffer_without_episodes_and_what_is_none(tmp_path: Path) -> None:
    figure = buffer_overview.buffer(make_buffer(3))
    for axes in axes_of(figure, tmp_path)[:2]:
        assert [text.get_text() for text in axes.texts] == ["no whole episode"]
    assert figure.get_suptitle() == "0 transitions, 0 episodes"
    text = r"plots.buffer.buffer: must be a ReplayBuffer; got 'buffer' \(str\)"
    refuses(ReplayBufferError, text, buffer_overview.buffer, "buffer")
