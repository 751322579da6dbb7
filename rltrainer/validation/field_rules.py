"""Rules of params' fields, as the metadata of their types: `max_epochs: PositiveInt = 100`.

Params check their fields at construction; `checked` does so for a single argument.
"""

import contextlib
import functools
import inspect
import math
import os
import re
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

import numpy as np

from rltrainer.errors import ParamsError, RLTrainerError
from rltrainer.validation.suggestions import did_you_mean


@dataclass(frozen=True)
class Rule:
    """One kind of value that a field accepts."""

    text: str
    """Completes the sentence "must be ..."."""
    accepts: Callable[[Any], bool]
    hint: str | Callable[[Any], str] = ""
    """Advice on what to write instead, or a function that returns it for a value."""


def is_int(value: object) -> TypeGuard[int]:
    """Return whether a value is a Python integer and no flag."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether a value is a Python number, no flag, and neither NaN nor infinite."""
    # An integer needs no look: one beyond float's range is finite, and `math.isfinite` would overflow on it.
    return is_int(value) or (isinstance(value, float) and math.isfinite(value))


def are_names(value: object) -> TypeGuard[Sequence[str]]:
    """Return whether a value is a sequence of texts, and no text itself."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(isinstance(x, str) for x in value)


PositiveInt = Annotated[int, Rule("a positive integer", lambda v: is_int(v) and v > 0)]
NonNegativeInt = Annotated[int, Rule("a non-negative integer", lambda v: is_int(v) and v >= 0)]
PositiveFloat = Annotated[float, Rule("a positive finite number", lambda v: is_finite(v) and v > 0)]
NonNegativeFloat = Annotated[float, Rule("a non-negative finite number", lambda v: is_finite(v) and v >= 0)]
FiniteFloat = Annotated[float, Rule("a finite number", is_finite)]
UnitFloat = Annotated[float, Rule("a number in [0, 1]", lambda v: is_finite(v) and 0 <= v <= 1)]
Sizes = Annotated[
    Sequence[int],
    Rule(
        "a sequence of positive integers",
        lambda v: isinstance(v, Sequence) and not isinstance(v, str | bytes) and all(is_int(n) and n > 0 for n in v),
        lambda v: f"Write ({v}, {v})." if is_int(v) else "",
    ),
]
Names = Annotated[Sequence[str], Rule("a sequence of names", are_names)]
Flag = Annotated[bool, Rule("True or False", lambda v: isinstance(v, bool))]
_NO_PATH = re.compile(rb"\0|[^/]{256}")
AnyPath = Annotated[
    str | os.PathLike[str],
    Rule(
        "a path",
        lambda v: isinstance(v, str | os.PathLike) and not _NO_PATH.search(str(v).encode(errors="replace")),
        lambda v: "Each name in it has at most 255 bytes, none of them 0." if isinstance(v, str | os.PathLike) else "",
    ),
]
AnyText = Annotated[str, Rule("a text that is not empty", lambda v: isinstance(v, str) and v.strip() != "")]
Scheduled = Annotated[
    Callable[[float], float],
    Rule(
        "a callable of progress in [0, 1]",
        lambda v: not isinstance(v, type) and _takes(v, 1),
        lambda v: "Write lambda progress: ..., or rl.LinearSchedule(start)." if callable(v) else "",
    ),
]


def as_python(value: Any) -> Any:
    """Return NumPy's numbers and flags as Python's, in a tuple or list too; all else stays as it is."""
    if type(value) in (int, float, bool, str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer) and not isinstance(value, np.timedelta64):  # which is one, to NumPy
        return int(value)
    if type(value) in (tuple, list) and any(isinstance(item, np.generic) for item in value):
        return type(value)(map(as_python, value))
    return float(value) if isinstance(value, np.floating) else value


def checked(owner: str, field: str, value: Any, annotation: Any, error: type[RLTrainerError] = ParamsError) -> Any:
    """Return an argument, NumPy's numbers as Python's; raise `error` if it breaks every rule of its annotation."""
    value, rules = as_python(value), _rules_once(annotation)
    if not any(rule.accepts(value) for rule in rules):
        raise error.about(owner, field, must_be(rules), value, remedy(rules, value))
    return value


def must_be(rules: list[Rule]) -> str:
    """Return the rule's part of an error's text."""
    return "must be " + " or ".join(rule.text for rule in rules)


def remedy(rules: list[Rule], value: Any) -> str:
    """Return a sentence with the value to write instead of this one, which breaks all these rules; or ""."""
    meant = _meant_number(value)
    if meant is not None and any(rule.accepts(meant) for rule in rules):
        return f"Write {value.strip()} without quotes." if isinstance(value, str) else f"Write {meant}."
    hints = (rule.hint if isinstance(rule.hint, str) else rule.hint(value) for rule in rules)
    return next(filter(None, hints), "")


def instance_of(*classes: type, hint: str = "") -> Rule:
    """Return the rule of a live object: an instance of one of `classes`, which `hint` makes."""
    names, how = " or ".join(c.__name__ for c in classes), hint or f"Write {classes[0].__name__}(...)."

    def hint_of(value: Any) -> str:
        is_class = isinstance(value, type) and issubclass(value, classes)
        return f"It is the class: write {value.__name__}(...)." if is_class else how

    return Rule(f"a {names}", lambda value: isinstance(value, classes), hint_of)


def a_callable(signature: str) -> Rule:
    """Return the rule of a callback, with its signature in words, such as `(score) -> bool`."""
    args = [arg.strip() for arg in re.sub(r"\[[^]]*\]|^\(", "", signature.partition(")")[0]).split(",")]
    names = ", ".join(arg if arg.islower() else "stats" for arg in args)
    return Rule(f"a callable {signature}", lambda v: _takes(v, len(args)), f"Write lambda {names}: ...")


def _meant_number(value: Any) -> int | float | None:
    """Return the number in a text, or the integer equal to a float; else None."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        for read in (int, float):
            with contextlib.suppress(ValueError):
                return read(value)
    return None


def _takes(value: object, num_args: int) -> bool:
    """Return whether a value can be called with so many arguments, as far as its signature is known."""
    if not callable(value):
        return False
    try:
        inspect.signature(value).bind(*range(num_args))
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        pass
    return True


def rules_of(annotation: Any) -> list[Rule]:
    """Return the alternatives that an annotation allows: its rules, None, literal values. Empty: any value."""
    if annotation is None or annotation is type(None):
        return [Rule("None", lambda value: value is None)]
    if get_origin(annotation) is Annotated:
        return [rule for rule in get_args(annotation)[1:] if isinstance(rule, Rule)]
    if get_origin(annotation) is Literal:
        options = get_args(annotation)
        text = f"one of {', '.join(map(repr, options))}"
        return [
            Rule(text, lambda v: isinstance(v, str) and v in options, lambda v: did_you_mean(str(v), options).strip())
        ]
    if get_origin(annotation) in (Union, types.UnionType):
        return [rule for member in get_args(annotation) for rule in rules_of(member)]
    return []


_rules_once = functools.cache(rules_of)


def missing_fields(cls: type, found: Collection[str]) -> list[str]:
    """Return the fields of a dataclass that have no default and are not found."""
    without = [f for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    return [field.name for field in without if field.name not in found]


@functools.cache
def field_hints(cls: type) -> dict[str, Any]:
    """Return the annotations of a dataclass's fields by name."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls)}
