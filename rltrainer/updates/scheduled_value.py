"""A hyperparameter that may follow a schedule, where a compiled gradient step reads it."""

import torch
from torch import Tensor

from rltrainer.schedules import Schedule, value_at


class ScheduledValue:
    """A scalar tensor that holds what a number or schedule is worth in the current update step.

    A tensor, because a number would be compiled into the graph.

    Args:
        schedule: the number, or the schedule.
        device: where gradient steps run.
    """

    def __init__(self, schedule: float | Schedule, device: torch.device) -> None:
        self.schedule = schedule
        self.value: Tensor = torch.tensor(float(value_at(schedule, 0.0)), device=device)

    def set_weight_dtype(self, dtype: torch.dtype) -> None:
        """Hold the value in another format; that of a schedule from the next update step on."""
        if self.value.dtype != dtype:
            value = self.value if callable(self.schedule) else self.schedule
            self.value = torch.as_tensor(value, dtype=dtype, device=self.value.device)

    def set_progress(self, progress: float) -> None:
        """Take the value that belongs to this progress."""
        if callable(self.schedule):
            self.value.fill_(value_at(self.schedule, progress))
