"""Intervals."""

import itertools
from typing import Any

import pytest

from rltrainer import interval
from rltrainer.errors import ParamsError
from rltrainer.interval import Every


@pytest.mark.parametrize(
    ("before", "now", "due"),
    [
        (-1, 0, True),  # a first step at 0
        (0, 999, False),
        (0, 1000, True),
        (999, 1000, True),
        (1000, 1001, False),
        (1000, 1000, False),
        (900, 5000, True),
        (1999, 2008, True),
        (2008, 2999, False),
    ],
)
def test_due_when_a_multiple_was_crossed(before: int, now: int, due: bool) -> None:
    assert Every(1000, "env_step").crossed(before, now) is due


def test_no_multiple_is_missed_or_counted_twice_whatever_the_stride() -> None:
    # 0, 7, 14, ..., 1001 crosses 100, 200, ..., 1000: ten times.
    steps = range(0, 1002, 7)
    assert sum(Every(100, "env_step").crossed(a, b) for a, b in itertools.pairwise(steps)) == 10


def test_fractions_of_seconds() -> None:
    assert Every(0.5, "second").crossed(0.4, 0.6)
    assert not Every(0.5, "second").crossed(0.6, 0.9)


def test_seconds_are_read_from_the_clock_and_counts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval.time, "monotonic", lambda: 12.5)
    assert Every(1, "second").now(3) == 12.5
    assert Every(1, "env_step").now(3) == 3


@pytest.mark.parametrize(
    ("n", "got"),
    [
        (0, "0 (int)"),
        (-1, "-1 (int)"),
        (True, "True (bool)"),
        (None, "None (NoneType)"),
        ("", "'' (str)"),
        (float("nan"), "nan (float)"),
        (float("inf"), "inf (float)"),
        ([1], "[1] (list)"),
    ],
)
def test_bad_n(n: Any, got: str) -> None:
    with pytest.raises(ParamsError) as caught:
        Every(n, "env_step")
    assert str(caught.value) == f"Every.n: must be a positive number; got {got}"


@pytest.mark.parametrize("unit", ["env_steps", "", None, 3, ["epoch"]])
def test_bad_unit(unit: Any) -> None:
    with pytest.raises(ParamsError, match=r"^Every.unit: must be one of \('env_step', .*'second'\); got "):
        Every(1, unit)
