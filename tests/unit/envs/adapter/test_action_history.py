"""The actions of running episodes: all of them are there, and nothing grows without bound."""

from typing import Any

import numpy as np
import pytest
import torch

from rltrainer.envs.adapter import action_history as action_trail
from rltrainer.envs.adapter.action_history import ActionHistory, StreamHistory
from rltrainer.envs.adapter.episode_clock import EpisodeClock

EVERY, NONE = np.arange(3), np.zeros(0, np.int64)


def row(number: int) -> Any:
    """Return the actions of three envs in this step: 10 * step + env."""
    return np.array([[10.0 * number + n] for n in range(3)], np.float32)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("of_tensors", [False, True])
def test_episodes_are_there_as_a_whole(seed: int, of_tensors: bool) -> None:
    rng = np.random.default_rng(seed)
    trail, clock, begins = ActionHistory(3), EpisodeClock(3, 1), np.zeros(3, np.int64)
    for number in range(1500):
        trail.add(torch.from_numpy(row(number)) if of_tensors else row(number), clock)
        clock.num_steps += 1
        ended = np.flatnonzero(rng.random(3) < [0.3, 0.01, 0.001])
        clock.finish(ended, delay=0)
        begins[ended] = number + 1
        if number % 50 == 0:
            for n, steps in enumerate(clock.episode_steps.tolist()):
                assert trail.of(n, steps)[:, 0].tolist() == [10.0 * k + n for k in range(begins[n], number + 1)]


@pytest.mark.parametrize("seed", range(3))
def test_episodes_of_envs_that_step_by_themselves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trail, done = StreamHistory(3), [[], [], []]  # type: ignore[var-annotated]  # numbers
    for number in range(1500):
        envs = np.flatnonzero(rng.random(3) < 0.6)
        steps = np.array([len(done[n]) for n in envs], np.int64)
        trail.put(envs, steps, row(number)[envs])
        for n in envs.tolist():
            done[n].append(10.0 * number + n)
            if rng.random() < 0.005:
                done[n] = []
    for n in range(3):
        assert trail.of(n, len(done[n]))[:, 0].tolist() == done[n]


def test_memory_is_for_twice_the_longest_running_episode() -> None:
    trail, clock = ActionHistory(3), EpisodeClock(3, 1)
    largest = 0
    for number in range(40_000):
        trail.add(row(number), clock)
        clock.num_steps += 1
        clock.finish(EVERY if number % 5_000 == 4_999 else EVERY[:2], delay=0)  # one env has episodes of 5,000 steps
        largest = max(largest, trail._rows.nbytes)
    assert 5_000 * 12 <= largest <= 2 * 5_000 * 12 + 24
    for number in range(20_000):  # and none any more
        trail.add(row(number), clock)
        clock.num_steps += 1
        clock.finish(EVERY, delay=0)
    assert trail._rows.nbytes == action_trail.MIN_ROWS * 12


def test_an_episode_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_trail, "MAX_STEPS", 1_000)
    trail, clock = ActionHistory(3), EpisodeClock(3, 1)
    stream = StreamHistory(3)
    for number in range(50_000):
        trail.add(row(number), clock)
        stream.put(EVERY, clock.episode_steps, row(number))
        clock.num_steps += 1
        assert max(trail._rows.nbytes, stream._rows.nbytes) <= 2 * 1_002 * 12
    assert trail._rows.nbytes == action_trail.MIN_ROWS * 12
