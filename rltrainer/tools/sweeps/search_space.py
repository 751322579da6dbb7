"""The space of a sweep: a range for each field, or what a function of a trial returns; and who takes the fields."""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rltrainer.errors import ParamsError
from rltrainer.state.plain import to_plain
from rltrainer.tools.recipes import AnyRecipe
from rltrainer.tools.sweeps.study import AnyTrial
from rltrainer.validation.field_rules import FiniteFloat, as_python, checked, is_finite
from rltrainer.validation.suggestions import argument_names, did_you_mean

OWNER = "sweep"


@dataclass(frozen=True)
class Uniform:
    """Numbers from `low` to `high`, all equally likely; `high` <= `low` is a `ParamsError`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        for field in ("low", "high"):
            value = checked(type(self).__name__, field, getattr(self, field), FiniteFloat)
            object.__setattr__(self, field, float(value))  # frozen, until here
        if self.low >= self.high:
            raise ParamsError.about(type(self).__name__, "high", f"must be greater than low, {self.low}", self.high)


@dataclass(frozen=True)
class LogUniform(Uniform):
    """Positive numbers (else a `ParamsError`) from `low` to `high` on a logarithmic scale, such as learning rates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            rule, hint = "must be positive", "Of rl.Uniform it may be 0."
            raise ParamsError.about("LogUniform", "low", rule, self.low, hint)


# The range of a field: `rl.Uniform`, `rl.LogUniform`, Python's `range` for integers, or a list of values.
Range = Uniform | range | Sequence[Any]


def check_range(name: str, values: Any) -> None:
    """Raise a `ParamsError` unless this is a range of at least two values."""

    def refuse(rule: str, hint: str = "") -> NoReturn:
        raise ParamsError.about(OWNER, f"space[{name!r}]", rule, values, hint)

    if isinstance(values, Uniform) or (isinstance(values, range) and len(values) > 1):
        return
    if isinstance(values, range) or not isinstance(values, list | tuple) or len(values) < 2:
        rule = "must be rl.Uniform, rl.LogUniform, a range of integers, or a list of values; of two values at least"
        refuse(rule, "What does not vary is a field of the recipe, or a constant of your function.")
    if isinstance(values, tuple) and len(values) == 2 and all(is_finite(as_python(each)) for each in values):
        low, high = sorted(values)
        between = f"rl.{'LogUniform' if low > 0 else 'Uniform'}({low!r}, {high!r})"
        between = f"range({low!r}, {high + 1!r})" if isinstance(low, int) and isinstance(high, int) else between
        hint = f"Write {between} for all between them, or the list {[low, high]!r} for these two."
        refuse("must not be a tuple of two numbers, which may mean a range or two values", hint)
    if len(set(map(label, values))) < len(values):
        refuse("must be a list of values that can be told apart in a file")


def draw(trial: AnyTrial, name: str, values: Range) -> Any:
    """Return a trial's value of a range."""
    if isinstance(values, Uniform):
        return trial.suggest_float(name, values.low, values.high, log=isinstance(values, LogUniform))
    if isinstance(values, range):
        ordered = values if values.step > 0 else values[::-1]
        return trial.suggest_int(name, ordered[0], ordered[-1], step=ordered.step)
    named = {label(value): value for value in values}
    return named[trial.suggest_categorical(name, list(named))]


def label(value: Any) -> bool | int | float | str | None:
    """Return a listed value as the number or text that a study can hold."""
    plain = to_plain(value)
    is_number = isinstance(plain, bool | int | float) and math.isfinite(plain)
    return plain if plain is None or is_number or isinstance(plain, str) else json.dumps(plain, sort_keys=True)


Space = Mapping[str, Range] | Callable[[AnyTrial], Mapping[str, Any]]
Make = AnyRecipe | Callable[..., Any]


class SearchSpace:
    """The fields that differ from trial to trial; who takes them must know them, else a `ParamsError` is raised."""

    def __init__(self, make: Make, space: Space) -> None:
        self._make, self._space = make, space
        if callable(space):
            return
        if not isinstance(space, Mapping) or not space or not all(isinstance(name, str) for name in space):
            rule = "must be a dict of ranges by the names of fields, or a function (trial) -> dict of values"
            raise ParamsError.about(OWNER, "space", rule, space)
        self._check_names(list(space))
        for name, values in space.items():
            check_range(name, values)
            if not isinstance(make, AnyRecipe):
                continue  # only the function's code knows which values it takes
            ends = (values.low, values.high) if isinstance(values, Uniform) else (values[0], values[-1])
            for value in values if isinstance(values, list | tuple) else ends:
                try:
                    make.with_fields(**{name: value})
                except ParamsError as error:
                    rule = f"{OWNER}.space[{name!r}]: has values that the field does not take"
                    raise ParamsError(f"{rule}. {error}") from None

    def draw(self, trial: AnyTrial) -> dict[str, Any]:
        """Return the fields of a trial by name; a `ParamsError` if a function returned no dict."""
        if not callable(self._space):
            return {name: draw(trial, name, values) for name, values in self._space.items()}
        fields = self._space(trial)
        if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
            raise ParamsError.about(OWNER, "space", "must return a dict of values by name", fields)
        self._check_names(list(fields))
        return dict(fields)

    def to_plain(self) -> Any:
        """Return the space as plain data; a function by its name."""
        if callable(self._space):
            return to_plain(self._space)
        plain: dict[str, Any] = {}
        for name, values in self._space.items():
            if isinstance(values, Uniform):
                plain[name] = {type(values).__name__: [values.low, values.high]}
            elif isinstance(values, range):
                plain[name] = {"range": [values.start, values.stop, values.step]}
            else:
                plain[name] = list(map(label, values))
        return plain

    def _check_names(self, names: list[str]) -> None:
        if not isinstance(self._make, AnyRecipe):
            self._check_arguments(self._make, names)
            return
        known = self._make.field_names()
        for name in names:
            if name == "seed":
                hint = "Of each trial run several seeds with num_seeds=..., from seed=... on."
                raise ParamsError(f"{OWNER}.space: a seed is no setting to choose. {hint}")
            if name not in known:
                last = name.rpartition(".")[2]
                hint = f" Did you mean {last!r}?" if last in known else did_you_mean(name, known)
                raise ParamsError(f"{OWNER}.space: {self._make.name} has no field {name!r}.{hint}")

    def _check_arguments(self, make: Callable[..., Any], names: list[str]) -> None:
        known, takes_any = argument_names(make)
        for name in names:
            if name not in known[1:] and not takes_any:
                raise ParamsError(f"{OWNER}.space: make takes no argument {name!r}.{did_you_mean(name, known[1:])}")
        try:
            inspect.signature(make).bind(0, **dict.fromkeys(names))
        except TypeError as error:
            hint = f"It is called with a seed, and with {', '.join(f'{name}=' for name in names)}"
            raise ParamsError(f"{OWNER}.make: cannot be called: {error}. {hint}") from None
