"""Running episodes that were read from a file, and rewards of other agents."""

import numpy as np
import pytest

from rltrainer.collect.episode_counter import EpisodeCounter, RunningEpisodes
from rltrainer.errors import CheckpointError


def test_running_returns_of_other_agents_are_an_error_and_not_spread_over_them() -> None:
    counter = EpisodeCounter(2)
    counter.set_state(RunningEpisodes(np.ones((2, 1)), np.array([3, 0])))
    with pytest.raises(CheckpointError, match=r"returns: expected those of rewards \(2,\), found \(2, 1\)"):
        counter.add(np.zeros(2), None, None)


def test_the_first_rewards_say_how_many_agents_there_are() -> None:
    counter = EpisodeCounter(2)
    counter.add(np.array([[1.0, 2.0], [3.0, 4.0]]), None, None)
    counter.add(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1]), None)
    assert counter.running.returns.tolist() == [[2, 4], [0, 0]]
    counter.restart()
    counter.add(np.ones((2, 2)), None, None)
    assert counter.running.returns.tolist() == [[1, 1], [1, 1]]
