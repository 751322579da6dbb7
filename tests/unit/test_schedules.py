"""Schedules over progress."""

from typing import Any

import numpy as np
import pytest

from rltrainer.errors import ParamsError
from rltrainer.schedules import CosineSchedule, LinearSchedule, value_at


def test_linear_to_the_end() -> None:
    schedule = LinearSchedule(1.0, 0.2)
    assert [schedule(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.6, 0.2])


def test_linear_reaches_its_end_early_and_stays() -> None:
    schedule = LinearSchedule(1.0, 0.05, until=0.2)
    # At 0.1, half of the way: 1 - 0.95 / 2.
    assert [schedule(p) for p in (0.0, 0.1, 0.2, 0.7, 1.3)] == pytest.approx([1.0, 0.525, 0.05, 0.05, 0.05])


def test_linear_may_rise_and_ends_at_zero_by_default() -> None:
    assert LinearSchedule(0.4, 1.0)(0.5) == pytest.approx(0.7)
    assert LinearSchedule(3e-4)(1.0) == 0.0


def test_cosine_to_the_end() -> None:
    # cos(pi / 3) = 1 / 2, so a third of the way leaves 3 / 4.
    schedule = CosineSchedule(4.0)
    assert [schedule(p) for p in (0.0, 1 / 3, 0.5, 2 / 3, 1.0)] == pytest.approx([4.0, 3.0, 2.0, 1.0, 0.0])


def test_cosine_reaches_its_end_early_and_stays() -> None:
    schedule = CosineSchedule(1.0, 3.0, until=0.5)
    assert [schedule(p) for p in (0.0, 0.25, 0.5, 1.0, 1.3)] == pytest.approx([1.0, 2.0, 3.0, 3.0, 3.0])


@pytest.mark.parametrize("schedule", [LinearSchedule, CosineSchedule])
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"until": 0}, "until: must be in (0, 1]; got 0 (int)"),
        ({"until": 1.5}, "until: must be in (0, 1]; got 1.5 (float)"),
        ({"until": None}, "until: must be a finite number; got None (NoneType)"),
        ({"start": float("nan")}, "start: must be a finite number; got nan (float)"),
        ({"start": True}, "start: must be a finite number; got True (bool)"),
        ({"end": "0"}, "end: must be a finite number; got '0' (str). Write 0 without quotes."),
    ],
)
def test_bad_values(schedule: type[Any], values: dict[str, Any], text: str) -> None:
    with pytest.raises(ParamsError) as caught:
        schedule(**({"start": 1.0} | values))
    assert str(caught.value) == f"{schedule.__name__}.{text}"


def test_value_at() -> None:
    assert value_at(0.3, 0.9) == 0.3
    assert value_at(lambda progress: 2 * progress, 0.25) == 0.5


@pytest.mark.parametrize("given", [None, "0.1", True, float("nan"), float("inf"), [0.1]])
def test_a_schedule_that_gives_no_number(given: Any) -> None:
    def mine(progress: float) -> Any:
        return given

    with pytest.raises(ParamsError) as caught:
        value_at(mine, 0.25)
    text = f"value at progress 0.25: must be a finite number; got {given!r} ({type(given).__name__})"
    text += ". Write 0.1 without quotes." * (given == "0.1")
    assert str(caught.value) == f"schedule <function test_a_schedule_that_gives_no_number.<locals>.mine>.{text}"


def test_a_schedule_may_give_numbers_of_numpy() -> None:
    assert type(value_at(lambda progress: np.float32(0.5), 0.0)) is float
    assert type(value_at(lambda progress: 1, 0.0)) is float
