"""Intervals: how often something is due, counted in a named unit."""

import time
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from rltrainer.errors import ParamsError
from rltrainer.validation.field_rules import Rule, as_python, checked, is_finite, is_int
from rltrainer.validation.suggestions import did_you_mean

PositiveNumber = Annotated[float, Rule("a positive number", lambda v: is_finite(v) and v > 0)]
Unit = Literal["env_step", "gradient_step", "update_step", "training_step", "epoch", "second"]


@dataclass(frozen=True)
class Every:
    """Each `n` of `unit`; due when a multiple of `n` was crossed. A wrong `n` or `unit` is a `ParamsError`."""

    n: int | float
    unit: Unit

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", checked("Every", "n", self.n, PositiveNumber))  # frozen
        if not isinstance(self.unit, str) or self.unit not in get_args(Unit):
            hint = did_you_mean(str(self.unit), get_args(Unit)).strip()
            raise ParamsError.about("Every", "unit", f"must be one of {get_args(Unit)}", self.unit, hint)

    def crossed(self, before: float, now: float) -> bool:
        """Return whether a multiple of `n` lies in (before, now]."""
        return now // self.n > before // self.n

    def now(self, count: float) -> float:
        """Return the position in this unit: the given count, or the clock's reading for seconds."""
        return time.monotonic() if self.unit == "second" else count


def as_every(owner: str, every: int | Every, field: str = "every") -> Every:
    """Return an interval; an int counts training steps. All else is a `ParamsError`."""
    every = as_python(every)
    if is_int(every) and every > 0:
        return Every(every, "training_step")
    if not isinstance(every, Every):
        raise ParamsError.about(owner, field, "must be a positive integer, of training steps, or an Every", every)
    return every
