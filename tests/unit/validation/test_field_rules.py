"""Each rule against the values users get wrong."""

from typing import Annotated, Any, Literal

import numpy as np
import pytest

from rltrainer.errors import ParamsError, ReplayBufferError
from rltrainer.validation import field_rules
from rltrainer.validation.field_rules import Rule, a_callable, as_python, checked, instance_of, rules_of

NAN, INF = float("nan"), float("inf")
BAD_FOR_ALL_NUMBERS = [None, True, False, NAN, INF, -INF, "", "1", [], [1], {}, 1j]


def accepts(annotation: Any, value: object) -> bool:
    return any(rule.accepts(value) for rule in rules_of(annotation))


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (field_rules.PositiveInt, [1, 7, 10**400], [0, -1, 1.0, 0.5]),
        (field_rules.NonNegativeInt, [0, 1], [-1, 0.0, 1.5]),
        (field_rules.PositiveFloat, [1, 1e-300, 2.5, 10**400], [0, 0.0, -1, -0.5]),
        (field_rules.NonNegativeFloat, [0, 0.0, 3.5], [-1, -1e-9]),
        (field_rules.FiniteFloat, [-1, 0, 2.5, 10**400], []),
        (field_rules.UnitFloat, [0, 1, 0.0, 1.0, 0.3], [-1, -1e-9, 1.0001, 2]),
    ],
)
def test_numbers(annotation: Any, good: list[object], bad: list[object]) -> None:
    assert [value for value in good if not accepts(annotation, value)] == []
    assert [value for value in [*bad, *BAD_FOR_ALL_NUMBERS] if accepts(annotation, value)] == []


def test_a_flag_is_a_bool_and_nothing_like_it() -> None:
    assert accepts(field_rules.Flag, True)
    assert accepts(field_rules.Flag, False)
    assert [value for value in [0, 1, None, "", "True", [], NAN] if accepts(field_rules.Flag, value)] == []


def test_scheduled_is_a_callable() -> None:
    assert accepts(field_rules.Scheduled, lambda progress: progress)
    assert not accepts(field_rules.Scheduled, 0.1)


def test_a_number_or_a_schedule_accepts_both_and_says_both() -> None:
    annotation = field_rules.PositiveFloat | field_rules.Scheduled
    assert accepts(annotation, 3e-4)
    assert accepts(annotation, lambda progress: 3e-4)
    assert not accepts(annotation, -1)
    assert not accepts(annotation, None)
    assert [r.text for r in rules_of(annotation)] == ["a positive finite number", "a callable of progress in [0, 1]"]


def test_none_is_accepted_only_where_it_is_named() -> None:
    assert accepts(field_rules.PositiveInt | None, None)
    assert not accepts(field_rules.PositiveInt, None)
    assert [rule.text for rule in rules_of(field_rules.PositiveInt | None)] == ["a positive integer", "None"]


def test_a_literal_lists_its_options() -> None:
    annotation = Literal["mean", "max"]
    assert accepts(annotation, "max")
    assert [value for value in ["min", "", None, 1, ["max"]] if accepts(annotation, value)] == []
    assert [rule.text for rule in rules_of(annotation)] == ["one of 'mean', 'max'"]


def test_live_objects() -> None:
    rule = instance_of(dict, list)
    assert rule.text == "a dict or list"
    assert rule.accepts({})
    assert rule.accepts([])
    assert not rule.accepts(())


def test_callbacks_say_their_signature() -> None:
    rule = a_callable("(score) -> bool")
    assert rule.text == "a callable (score) -> bool"
    assert rule.accepts(len)
    assert not rule.accepts(475)


def test_other_metadata_and_bare_types_are_no_rules() -> None:
    assert rules_of(Annotated[int, "a note"]) == []
    assert rules_of(tuple[int, ...]) == []
    assert [rule.text for rule in rules_of(Annotated[int, "a note", Rule("even", lambda v: v % 2 == 0)])] == ["even"]


@pytest.mark.parametrize(
    ("given", "plain"),
    [(np.int64(3), 3), (np.uint8(3), 3), (np.float64(0.5), 0.5), (np.float32(0.5), 0.5), (np.bool_(True), True)],
)
def test_numbers_of_numpy_as_pythons(given: Any, plain: object) -> None:
    found = as_python(given)
    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize("value", [None, "x", [1], np.timedelta64(3), np.array(3)])
def test_everything_else_stays(value: object) -> None:
    assert as_python(value) is value


def test_a_single_argument_is_checked() -> None:
    assert type(checked("Owner", "n", np.int64(3), field_rules.PositiveInt)) is int
    assert checked("Owner", "n", None, field_rules.PositiveInt | None) is None
    with pytest.raises(ParamsError, match=r"^Owner.n: must be a positive integer or None; got 0 \(int\)$"):
        checked("Owner", "n", np.int64(0), field_rules.PositiveInt | None)
    with pytest.raises(ReplayBufferError, match=r"^Owner.n: must be a positive integer; got 'x' \(str\)$"):
        checked("Owner", "n", "x", field_rules.PositiveInt, ReplayBufferError)
