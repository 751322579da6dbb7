"""The rule of batched inference, with a clock that the test sets."""

from typing import Any

import pytest

import rltrainer as rl
from rltrainer.collect.batched_collector import EnvQueue


def waiting(*times: float, **params: Any) -> EnvQueue:
    """Return envs 0, 1, ... that began to wait at these times."""
    envs = EnvQueue(rl.InferenceParams(**params))
    for env, time in enumerate(times):
        envs.add([env], time)
    return envs


FOUR_TO_SIX = {"min_batch_size": 4, "max_batch_size": 6, "max_wait_time": 0.05}


@pytest.mark.parametrize(("times", "starts"), [
    # Four of eight wait, the others sleep: 50 ms after the first of them.
    ([10.0, 10.01, 10.02, 10.03], 10.05),
    ([10.0, 10.0, 10.0, 10.0], 10.05),
    # The minimum is reached later than that: at once then.
    ([10.0, 10.0, 10.0, 10.2], 10.2),
    # Five: no sooner. Six, the maximum: at once.
    ([10.0, 10.0, 10.0, 10.0, 10.04], 10.05),
    ([10.0, 10.0, 10.0, 10.0, 10.01, 10.02], 10.02),
])  # fmt: skip
def test_four_to_six_of_eight_within_50_ms(times: list[float], starts: float) -> None:
    envs = EnvQueue(rl.InferenceParams(**FOUR_TO_SIX))
    for env, now in enumerate(times):
        assert envs.take(8, now) == []
        envs.add([env], now)
    assert envs.seconds_left(8, times[-1]) == pytest.approx(starts - times[-1])
    assert envs.take(8, starts - 0.001) == [] or starts == times[-1]
    envs = waiting(*times, **FOUR_TO_SIX)
    assert envs.take(8, starts) == list(range(len(times)))
    assert envs.take(8, starts + 1) == []


def test_below_the_minimum_it_waits_for_ever_and_without_a_waiting_time_the_minimum_starts() -> None:
    envs = waiting(10.0, 10.0, 10.0, **FOUR_TO_SIX)
    assert envs.take(8, 1e9) == []
    assert envs.seconds_left(8, 1e9) is None
    envs = waiting(10.0, 10.0, 10.0, min_batch_size=4, max_batch_size=6)
    assert envs.take(8, 11.0) == []
    envs.add([3], 11.0)
    assert envs.seconds_left(8, 11.0) == 0.0
    assert envs.take(8, 11.0) == [0, 1, 2, 3]


def test_never_above_the_maximum_and_those_left_wait_since_they_came() -> None:
    envs = waiting(*[10.0] * 5, *[10.02] * 6, **FOUR_TO_SIX)
    assert envs.take(11, 10.02) == [0, 1, 2, 3, 4, 5]
    assert envs.take(11, 10.069) == []
    assert envs.seconds_left(11, 10.03) == pytest.approx(0.04)
    assert envs.take(11, 10.07) == [6, 7, 8, 9, 10]


@pytest.mark.parametrize(("num_waiting", "options", "num_live", "takes"), [
    # Fewer than the minimum live: all of them are a batch.
    (3, FOUR_TO_SIX, 3, [0, 1, 2]),
    (3, FOUR_TO_SIX, 2, [0, 1]),
    (3, FOUR_TO_SIX, 4, []),
    # All that exist wait: another one will not come.
    (5, FOUR_TO_SIX, 5, [0, 1, 2, 3, 4]),
    (3, {"max_wait_time": 5.0}, 3, [0, 1, 2]),
])  # fmt: skip
def test_who_will_not_come_is_not_waited_for(num_waiting: int, options: Any, num_live: int, takes: list[int]) -> None:
    assert waiting(*[10.0] * num_waiting, **options).take(num_live, 10.0) == takes


def test_nothing_is_due_where_nobody_may_act_any_more() -> None:
    """A rollout is complete but for steps that are under way: these are waited for asleep."""
    envs = waiting(*[10.0] * 5, **FOUR_TO_SIX)
    assert envs.seconds_left(0, 11.0) is None
    assert envs.take(0, 11.0) == []
    assert envs.take(5, 11.0) == [0, 1, 2, 3, 4]


def test_the_defaults_decide_for_whoever_is_there() -> None:
    envs = waiting(10.0)
    assert envs.take(8, 10.0) == [0]
    assert envs.seconds_left(8, 10.0) is None
    envs.add([3, 1], 11.0)
    assert envs.take(8, 11.0) == [3, 1], "who waits longest comes first"
    assert envs.take(8, 13.0) == []
