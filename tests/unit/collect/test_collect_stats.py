"""Statistics of collections, and the counter of running episodes."""

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.collect.episode_counter import EpisodeCounter, RunningEpisodes
from rltrainer.errors import CheckpointError
from rltrainer.state.codec import from_state, to_state


def stats(returns: list[float], steps: int = 10, seconds: float = 0.5) -> rl.CollectStats:
    lengths = np.arange(len(returns)) + 1
    return rl.CollectStats(steps, steps + 2, np.array(returns, np.float64), lengths, seconds)


def test_summary() -> None:
    # Mean of 1, 3 is 2; the population's standard deviation 1.
    assert stats([1.0, 3.0]).returns_stat == rl.SequenceSummaryStats(mean=2.0, std=1.0, max=3.0, min=1.0)
    assert stats([]).returns_stat is None
    assert stats([]).lengths_stat is None


def test_merge_adds_up() -> None:
    merged = rl.CollectStats.merge([stats([1.0]), stats([]), stats([2.0, 3.0])])
    assert merged.returns.tolist() == [1.0, 2.0, 3.0]
    assert (merged.num_collected_steps, merged.num_env_steps, merged.collect_time) == (30, 36, 1.5)
    assert merged.collect_speed == 24.0
    assert rl.CollectStats.merge([stats([]), stats([])]).num_collected_episodes == 0


def test_state_round_trip() -> None:
    one = stats([1.0, 2.0])
    other = from_state(rl.CollectStats, to_state(one), "stats")
    assert other.returns.tolist() == one.returns.tolist()
    assert other.lengths.tolist() == one.lengths.tolist()
    assert (other.num_env_steps, other.collect_time) == (one.num_env_steps, one.collect_time)


def test_printing_is_one_line_without_arrays() -> None:
    text = "CollectStats(12 env steps, 2 episodes, return 2 +- 1, length 1.5 +- 0.5, 0.5 s)"
    assert str(stats([1.0, 3.0])) == repr(stats([1.0, 3.0])) == text
    assert str(stats([])) == "CollectStats(12 env steps, 0 episodes, 0.5 s)"


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
