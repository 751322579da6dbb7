"""The ranges that fields vary in, as Optuna draws from them."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.state.plain_values import to_plain
from rltrainer.validation.field_rules import as_python, is_finite

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Uniform:
    """Numbers from `low` to `high`, all alike.

    Args:
        low, high: the least and the greatest.

    Raises:
        ParamsError: they are no finite numbers, or not in this order.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        for field in ("low", "high"):
            value = as_python(getattr(self, field))
            if not is_finite(value):
                raise ParamsError(field_error_text(type(self).__name__, field, "must be a finite number", value))
            object.__setattr__(self, field, float(value))  # frozen, until here
        if self.low >= self.high:
            rule = f"must be greater than low, {self.low}"
            raise ParamsError(field_error_text(type(self).__name__, "high", rule, self.high))


@dataclass(frozen=True)
class LogUniform(Uniform):
    """Positive numbers from `low` to `high`, each power of ten as likely as the next: learning rates, coefficients.

    Args:
        low, high: the least and the greatest.

    Raises:
        ParamsError: they are no positive finite numbers, or not in this order.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            rule, hint = "must be positive", "Of rl.Uniform it may be 0."
            raise ParamsError(field_error_text("LogUniform", "low", rule, self.low, hint))


Range = Uniform | range | Sequence[Any]
"""The range of a field: `rl.Uniform`, `rl.LogUniform`, Python's `range` for integers, or a list of values."""


def check_range(owner: str, name: str, values: Any) -> None:
    """Raise a `ParamsError` of the owner's if this is no range, or an empty one."""
    if isinstance(values, Uniform) or (isinstance(values, range) and len(values) > 1):
        return
    if isinstance(values, range) or not isinstance(values, list | tuple) or len(values) < 2:
        rule = "must be rl.Uniform, rl.LogUniform, a range of integers, or a list of values; of two values at least"
        hint = "What does not vary is a field of the recipe, or a constant of your function."
        raise ParamsError(field_error_text(owner, f"space[{name!r}]", rule, values, hint))
    if isinstance(values, tuple) and len(values) == 2 and all(is_finite(as_python(each)) for each in values):
        low, high = sorted(values)
        between = f"rl.{'LogUniform' if low > 0 else 'Uniform'}({low!r}, {high!r})"
        between = f"range({low!r}, {high + 1!r})" if isinstance(low, int) and isinstance(high, int) else between
        rule = "must not be a tuple of two numbers, which may mean a range or two values"
        hint = f"Write {between} for all between them, or the list {[low, high]!r} for these two."
        raise ParamsError(field_error_text(owner, f"space[{name!r}]", rule, values, hint))
    labels = list(map(label, values))
    if len(set(labels)) < len(labels):
        rule = "must be a list of values that can be told apart in a file"
        raise ParamsError(field_error_text(owner, f"space[{name!r}]", rule, values))


def draw(trial: "optuna.trial.BaseTrial", name: str, values: Range) -> Any:
    """Return the value that a trial has of a range."""
    if isinstance(values, Uniform):
        return trial.suggest_float(name, values.low, values.high, log=isinstance(values, LogUniform))
    if isinstance(values, range):
        ordered = values if values.step > 0 else values[::-1]
        return trial.suggest_int(name, ordered[0], ordered[-1], step=ordered.step)
    named = {label(value): value for value in values}
    return named[trial.suggest_categorical(name, list(named))]


def ends(values: Range) -> list[Any]:
    """Return values which a field takes if it takes all of a range: its ends, or each of a list."""
    if isinstance(values, Uniform):
        return [values.low, values.high]
    return [values[0], values[-1]] if isinstance(values, range) else list(values)


def as_plain(values: Range) -> Any:
    """Return a range as plain data."""
    if isinstance(values, Uniform):
        return {type(values).__name__: [values.low, values.high]}
    if isinstance(values, range):
        return {"range": [values.start, values.stop, values.step]}
    return list(map(label, values))


def label(value: Any) -> bool | int | float | str | None:
    """Return what stands for a value of a list in a study, which holds numbers and texts only."""
    plain = to_plain(value)
    is_number = isinstance(plain, bool | int | float) and math.isfinite(plain)
    return plain if plain is None or is_number or isinstance(plain, str) else json.dumps(plain, sort_keys=True)
