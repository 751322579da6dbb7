"""Intervals: how often something is due, counted in a named unit."""

import time
from dataclasses import dataclass
from typing import Literal, get_args

from rltrainer.errors import ParamsError, field_error_text

Unit = Literal["env_step", "gradient_step", "update_step", "training_step", "epoch", "second"]


@dataclass(frozen=True)
class Every:
    """Each `n` of `unit`; due when a multiple of `n` was crossed.

    Raises:
        ParamsError: `n` is not positive, or the unit is unknown.
    """

    n: int | float
    unit: Unit

    def __post_init__(self) -> None:
        if isinstance(self.n, bool) or not isinstance(self.n, int | float) or not 0 < self.n < float("inf"):
            raise ParamsError(field_error_text("Every", "n", "must be a positive number", self.n))
        if self.unit not in get_args(Unit):
            raise ParamsError(field_error_text("Every", "unit", f"must be one of {get_args(Unit)}", self.unit))

    def crossed(self, before: float, now: float) -> bool:
        """Return whether a multiple of `n` lies in (before, now]."""
        return now // self.n > before // self.n

    def now(self, count: float) -> float:
        """Return the position in this unit: the given count, or the clock where the unit is a second."""
        return time.monotonic() if self.unit == "second" else count
