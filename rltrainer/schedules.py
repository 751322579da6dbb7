"""Schedules: callables of training progress in [0, 1] that give a hyperparameter's value.

Progress is env steps over planned env steps (offline: gradient steps over planned ones) at the start of a training
step, and constant within it: update k of n, counted from 0, has progress k / n. Without a trainer it is 0.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rltrainer.errors import ParamsError, readable
from rltrainer.validation.field_rules import FiniteFloat, checked

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
        name = type(self).__name__
        for field, value in list(vars(self).items()):
            object.__setattr__(self, field, checked(name, field, value, FiniteFloat))  # frozen
        if not 0.0 < self.until <= 1.0:
            raise ParamsError.about(name, "until", "must be in (0, 1]", self.until)

    def __call__(self, progress: float) -> float:
        """Return the value at `progress`."""
        return self.start + (self.end - self.start) * min(progress / self.until, 1.0)


@dataclass(frozen=True)
class CosineSchedule(LinearSchedule):
    """Go from `start` to `end` along half a cosine wave: slow at both ends, fastest in the middle.

    Takes and raises what `LinearSchedule` does. Source: Loshchilov & Hutter 2017, SGDR, eq. 5, without restarts.
    """

    def __call__(self, progress: float) -> float:
        """Return the value at `progress`."""
        share_left = 0.5 * (1.0 + math.cos(math.pi * min(progress / self.until, 1.0)))
        return self.end + (self.start - self.end) * share_left


SCHEDULES = {"LinearSchedule": LinearSchedule, "CosineSchedule": CosineSchedule}
"""The schedules that JSON can hold, frozen dataclasses of numbers, by name; no other name in a text is looked up."""


def value_at(value: "float | Schedule", progress: float) -> float:
    """Return the number itself, or the schedule's value at `progress`; a `ParamsError` if it is not finite."""
    if not callable(value):
        return value
    found = value(progress)
    if type(found) is float and math.isfinite(found):  # most are
        return found
    owner, field = f"schedule {readable(value)}", f"value at progress {progress:g}"
    return float(checked(owner, field, found, FiniteFloat))


class ScheduledValue:
    """A hyperparameter that may follow a schedule, as the scalar tensor `value`.

    A compiled gradient step reads it: a Python number would be compiled into the graph.
    """

    def __init__(self, schedule: float | Schedule, device: torch.device) -> None:
        self.schedule = schedule
        self.value: Tensor = torch.tensor(float(value_at(schedule, 0.0)), device=device)

    def set_weight_dtype(self, dtype: torch.dtype) -> None:
        """Hold the value in another format; the value of a schedule from the next update step on."""
        if self.value.dtype != dtype:
            value = self.value if callable(self.schedule) else self.schedule
            self.value = torch.as_tensor(value, dtype=dtype, device=self.value.device)

    def set_progress(self, progress: float) -> None:
        """Take the value that belongs to this progress."""
        if callable(self.schedule):
            self.value.fill_(value_at(self.schedule, progress))
