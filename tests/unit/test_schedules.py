"""Schedules over progress."""

from typing import Any

import numpy as np
import pytest

from rltrainer.errors import ParamsError
from rltrainer.schedules import CosineSchedule, LinearSchedule, value_at


@pytest.mark.parametrize(("schedule", "values"), [
    (LinearSchedule(1.0, 0.2), {0.0: 1.0, 0.5: 0.6, 1.0: 0.2}),
    # At 0.1, half of the way: 1 - 0.95 / 2. It ends early, and stays.
    (LinearSchedule(1.0, 0.05, until=0.2), {0.0: 1.0, 0.1: 0.525, 0.2: 0.05, 0.7: 0.05, 1.3: 0.05}),
    (LinearSchedule(0.4, 1.0), {0.5: 0.7}),
    (LinearSchedule(3e-4), {1.0: 0.0}),
    # cos(pi / 3) = 1 / 2, so a third of the way leaves 3 / 4.
    (CosineSchedule(4.0), {0.0: 4.0, 1 / 3: 3.0, 0.5: 2.0, 2 / 3: 1.0, 1.0: 0.0}),
    (CosineSchedule(1.0, 3.0, until=0.5), {0.0: 1.0, 0.25: 2.0, 0.5: 3.0, 1.0: 3.0, 1.3: 3.0}),
])  # fmt: skip
def test_values_by_hand(schedule: LinearSchedule, values: dict[float, float]) -> None:
    assert list(map(schedule, values)) == pytest.approx(list(values.values()))


def test_a_number_or_what_a_schedule_gives() -> None:
    assert value_at(0.3, 0.9) == 0.3
    assert value_at(lambda progress: 2 * progress, 0.25) == 0.5
    assert type(value_at(lambda progress: np.float32(0.5), 0.0)) is float
    assert type(value_at(lambda progress: 1, 0.0)) is float


@pytest.mark.parametrize("given", [None, "0.1", True, float("nan"), float("inf"), [0.1]])
def test_a_schedule_that_gives_no_number(given: Any) -> None:
    def mine(progress: float) -> Any:
        return given

    with pytest.raises(ParamsError) as caught:
        value_at(mine, 0.25)
    text = f"value at progress 0.25: must be a finite number; got {given!r} ({type(given).__name__})"
    text += ". Write 0.1 without quotes." * (given == "0.1")
    assert str(caught.value) == f"schedule <function test_a_schedule_that_gives_no_number.<locals>.mine>.{text}"
