"""Schedules: callables of training progress in [0, 1] that give a hyperparameter's value.

Progress is env steps over planned env steps (offline: gradient steps over planned ones), constant within an update
step, and 0 for an algorithm that no trainer drives.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from rltrainer.errors import ParamsError, field_error_text

Schedule = Callable[[float], float]


@dataclass(frozen=True)
class LinearSchedule:
    """Go linearly from `start` at progress 0 to `end` at progress `until`, and stay there.

    Args:
        start: value at progress 0.
        end: value from progress `until` on.
        until: progress in (0, 1] at which `end` is reached.

    Raises:
        ParamsError: a value is not a finite number, or `until` is not in (0, 1].
    """

    start: float
    end: float = 0.0
    until: float = 1.0

    def __post_init__(self) -> None:
        for name in ("start", "end", "until"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ParamsError(field_error_text("LinearSchedule", name, "must be a finite number", value))
        if not 0.0 < self.until <= 1.0:
            raise ParamsError(field_error_text("LinearSchedule", "until", "must be in (0, 1]", self.until))

    def __call__(self, progress: float) -> float:
        """Return the value at `progress`."""
        return self.start + (self.end - self.start) * min(progress / self.until, 1.0)


def value_at(value: "float | Schedule", progress: float) -> float:
    """Return the number itself, or the schedule's value at `progress`."""
    return value(progress) if callable(value) else value
