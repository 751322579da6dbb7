"""Each rule against the values users get wrong."""

from typing import Annotated, Any, Literal

import numpy as np
import pytest

from rltrainer.errors import ParamsError, ReplayBufferError
from rltrainer.validation import field_rules
from rltrainer.validation.field_rules import Rule, a_callable, as_python, checked, instance_of, rules_of

NAN, INF = float("nan"), float("inf")
BAD_FOR_ALL_NUMBERS = [None, True, False, NAN, INF, -INF, "", "1", [], [1], {}, 1j]
SCHEDULED_FLOAT = field_rules.PositiveFloat | field_rules.Scheduled


@pytest.mark.parametrize(("annotation", "good", "bad"), [
    (field_rules.PositiveInt, [1, 7, 10**400], [0, -1, 1.0, 0.5, *BAD_FOR_ALL_NUMBERS]),
    (field_rules.NonNegativeInt, [0, 1], [-1, 0.0, 1.5, *BAD_FOR_ALL_NUMBERS]),
    (field_rules.PositiveFloat, [1, 1e-300, 2.5, 10**400], [0, 0.0, -1, -0.5, *BAD_FOR_ALL_NUMBERS]),
    (field_rules.NonNegativeFloat, [0, 0.0, 3.5], [-1, -1e-9, *BAD_FOR_ALL_NUMBERS]),
    (field_rules.FiniteFloat, [-1, 0, 2.5, 10**400], BAD_FOR_ALL_NUMBERS),
    (field_rules.UnitFloat, [0, 1, 0.0, 1.0, 0.3], [-1, -1e-9, 1.0001, 2, *BAD_FOR_ALL_NUMBERS]),
    (field_rules.Flag, [True, False], [0, 1, None, "", "True", [], NAN]),
    (field_rules.Scheduled, [lambda progress: progress], [0.1]),
    (SCHEDULED_FLOAT, [3e-4, lambda progress: 3e-4], [-1, None]),
    (field_rules.PositiveInt | None, [None, 1], [0]),
    (Literal["mean", "max"], ["max"], ["min", "", None, 1, ["max"]]),
    (Annotated[Any, instance_of(dict, list)], [{}, []], [()]),
    (Annotated[Any, a_callable("(score) -> bool")], [len], [475]),
])  # fmt: skip
def test_values(annotation: Any, good: list[object], bad: list[object]) -> None:
    rules = rules_of(annotation)
    assert [value for value in [*good, *bad] if any(rule.accepts(value) for rule in rules)] == good


@pytest.mark.parametrize(("annotation", "texts"), [
    (SCHEDULED_FLOAT, ["a positive finite number", "a callable of progress in [0, 1]"]),
    (field_rules.PositiveInt | None, ["a positive integer", "None"]),
    (Literal["mean", "max"], ["one of 'mean', 'max'"]), (Annotated[Any, instance_of(dict, list)], ["a dict or list"]),
    (Annotated[Any, a_callable("(score) -> bool")], ["a callable (score) -> bool"]), (Annotated[int, "a note"], []),
    (tuple[int, ...], []), (Annotated[int, "a note", Rule("even", lambda v: v % 2 == 0)], ["even"]),
])  # fmt: skip
def test_texts(annotation: Any, texts: list[str]) -> None:
    assert [rule.text for rule in rules_of(annotation)] == texts


def test_numbers_of_numpy_become_pythons_and_all_else_stays() -> None:
    numpys: list[Any] = [np.int64(3), np.uint8(3), np.float64(0.5), np.float32(0.5), np.bool_(True)]
    assert [(type(found), found) for found in map(as_python, numpys)] == [
        (int, 3), (int, 3), (float, 0.5), (float, 0.5), (bool, True)
    ]  # fmt: skip
    for value in (None, "x", [1], np.timedelta64(3), np.array(3)):
        assert as_python(value) is value


def test_a_single_argument_is_checked() -> None:
    assert type(checked("Owner", "n", np.int64(3), field_rules.PositiveInt)) is int
    assert checked("Owner", "n", None, field_rules.PositiveInt | None) is None
    with pytest.raises(ParamsError, match=r"^Owner.n: must be a positive integer or None; got 0 \(int\)$"):
        checked("Owner", "n", np.int64(0), field_rules.PositiveInt | None)
    with pytest.raises(ReplayBufferError, match=r"^Owner.n: must be a positive integer; got 'x' \(str\)$"):
        checked("Owner", "n", "x", field_rules.PositiveInt, ReplayBufferError)
