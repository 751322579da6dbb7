"""What a params field accepts, written as its type: `max_epochs: PositiveInt = 100`.

A rule is the metadata of an `Annotated` type, so a dataclass states type and rule in one place and `params.py`
checks them at construction. Nothing here knows a params class.
"""

import math
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rltrainer.schedules import Schedule


@dataclass(frozen=True)
class Rule:
    """One thing a field accepts.

    Args:
        text: completes the sentence "must be ...".
        accepts: whether a value follows the rule.
    """

    text: str
    accepts: Callable[[Any], bool]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    # An integer needs no look: one beyond float's range is finite, and `math.isfinite` would overflow on it.
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


PositiveInt = Annotated[int, Rule("a positive integer", lambda v: _is_int(v) and v > 0)]
NonNegativeInt = Annotated[int, Rule("a non-negative integer", lambda v: _is_int(v) and v >= 0)]
PositiveFloat = Annotated[float, Rule("a positive finite number", lambda v: _is_finite(v) and v > 0)]
NonNegativeFloat = Annotated[float, Rule("a non-negative finite number", lambda v: _is_finite(v) and v >= 0)]
FiniteFloat = Annotated[float, Rule("a finite number", _is_finite)]
UnitFloat = Annotated[float, Rule("a number in [0, 1]", lambda v: _is_finite(v) and 0 <= v <= 1)]
Flag = Annotated[bool, Rule("True or False", lambda v: isinstance(v, bool))]
Scheduled = Annotated[Schedule, Rule("a callable of progress in [0, 1]", callable)]


def instance_of(*classes: type) -> Rule:
    """Return the rule of a live object: an instance of one of `classes`."""
    names = " or ".join(c.__name__ for c in classes)
    return Rule(f"a {names}", lambda value: isinstance(value, classes))


def a_callable(signature: str) -> Rule:
    """Return the rule of a callback, with its signature in words, such as `(score) -> bool`."""
    return Rule(f"a callable {signature}", callable)


def rules_of(annotation: Any) -> list[Rule]:
    """Return the alternatives that an annotation allows: its rules, None, literal values. Empty: anything goes."""
    if annotation is None or annotation is type(None):
        return [Rule("None", lambda value: value is None)]
    if get_origin(annotation) is Annotated:
        return [rule for rule in get_args(annotation)[1:] if isinstance(rule, Rule)]
    if get_origin(annotation) is Literal:
        options = get_args(annotation)
        return [
            Rule(f"one of {', '.join(map(repr, options))}", lambda value: isinstance(value, str) and value in options)
        ]
    if get_origin(annotation) in (Union, types.UnionType):
        return [rule for member in get_args(annotation) for rule in rules_of(member)]
    return []
