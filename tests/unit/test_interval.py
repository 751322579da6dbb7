"""Intervals."""

import itertools

import pytest

from rltrainer import interval
from rltrainer.interval import Every


def test_due_when_a_multiple_was_crossed() -> None:
    every = Every(1000, "env_step")
    due = [(-1, 0), (0, 1000), (999, 1000), (900, 5000), (1999, 2008)]  # -1: a first step at 0
    not_due = [(0, 999), (1000, 1001), (1000, 1000), (2008, 2999)]
    assert [pair for pair in due + not_due if every.crossed(*pair)] == due
    assert [Every(0.5, "second").crossed(*pair) for pair in ((0.4, 0.6), (0.6, 0.9))] == [True, False]
    # 0, 7, 14, ..., 1001 crosses 100, 200, ..., 1000: ten times, none missed or counted twice.
    steps = range(0, 1002, 7)
    assert sum(Every(100, "env_step").crossed(a, b) for a, b in itertools.pairwise(steps)) == 10


def test_seconds_are_read_from_the_clock_and_counts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval.time, "monotonic", lambda: 12.5)
    assert (Every(1, "second").now(3), Every(1, "env_step").now(3)) == (12.5, 3)
