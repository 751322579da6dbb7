"""The space of a sweep: fields by name, each in a range, or what a function of a trial returns; who takes them."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.state.plain_values import to_plain
from rltrainer.tools.recipes import AnyRecipe
from rltrainer.tools.sweeps.ranges import Range, as_plain, check_range, draw, ends
from rltrainer.validation.suggestions import did_you_mean

if TYPE_CHECKING:
    import optuna

Space = Mapping[str, Range] | Callable[["optuna.trial.BaseTrial"], Mapping[str, Any]]
Make = AnyRecipe | Callable[..., Any]
OWNER = "sweep"


class SearchSpace:
    """The fields that differ from trial to trial, checked against who takes them.

    Args:
        make: a recipe, or a function that makes a trainer of a seed and of these fields.
        space: ranges by the names of fields, or a function of a trial.
    """

    def __init__(self, make: Make, space: Space) -> None:
        self._make, self._space = make, space
        if callable(space):
            return
        if not isinstance(space, Mapping) or not space or not all(isinstance(name, str) for name in space):
            rule = "must be a dict of ranges by the names of fields, or a function (trial) -> dict of values"
            raise ParamsError(field_error_text(OWNER, "space", rule, space))
        self.check_names(list(space))
        for name, values in space.items():
            check_range(OWNER, name, values)
            for value in ends(values):
                self._check_value(name, value)

    def draw(self, trial: "optuna.trial.BaseTrial") -> dict[str, Any]:
        """Return the fields of a trial by name."""
        if not callable(self._space):
            return {name: draw(trial, name, values) for name, values in self._space.items()}
        fields = self._space(trial)
        if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
            raise ParamsError(field_error_text(OWNER, "space", "must return a dict of values by name", fields))
        self.check_names(list(fields))
        return dict(fields)

    def to_plain(self) -> Any:
        """Return what varies as plain data; a function by its name."""
        if callable(self._space):
            return to_plain(self._space)
        return {name: as_plain(values) for name, values in self._space.items()}

    def check_names(self, names: list[str]) -> None:
        """Raise a `ParamsError` if one is no field; the text names the nearest."""
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
        parameters = inspect.signature(make).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        known = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)][1:]
        for name in names:
            if name not in known and not takes_any:
                raise ParamsError(f"{OWNER}.space: make takes no argument {name!r}.{did_you_mean(name, known)}")
        try:
            inspect.signature(make).bind(0, **dict.fromkeys(names))
        except TypeError as error:
            hint = f"It is called with a seed, and with {', '.join(f'{name}=' for name in names)}"
            raise ParamsError(f"{OWNER}.make: cannot be called: {error}. {hint}") from None

    def _check_value(self, name: str, value: Any) -> None:
        if not isinstance(self._make, AnyRecipe):
            return  # only its code knows
        try:
            self._make.with_fields(**{name: value})
        except ParamsError as error:
            raise ParamsError(f"{OWNER}.space[{name!r}]: has values that the field does not take. {error}") from None
