"""A summary of numbers that come in parts: count, mean, deviation, extremes. What it keeps does not grow."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rltrainer.field_rules import NonNegativeInt
from rltrainer.typed_state import to_state
from rltrainer.types import State

MAX_PARTS = 256
MAX_NUMBERS = 1 << 20
"""Parts wait, without a wait for their device, until there are so many of them, or so many numbers in them."""


@dataclass
class Summary:
    """The summary of numbers; `sum_of_squares` is that of their distances from the mean."""

    count: NonNegativeInt = 0
    mean: float = 0.0
    sum_of_squares: float = 0.0
    min: float = math.inf
    max: float = -math.inf

    def problem(self) -> str | None:
        """Return what is wrong with a summary that was read from a file, or None."""
        return "sum_of_squares: is negative" if self.sum_of_squares < 0 else None

    @property
    def sum(self) -> float:
        """The sum of all of them."""
        return self.mean * self.count

    @property
    def std(self) -> float:
        """The population's standard deviation."""
        return math.sqrt(self.sum_of_squares / self.count) if self.count else 0.0

    def merge(self, x: Tensor) -> None:
        """Merge numbers [M] in float64 (Chan et al. 1979); waits for their device."""
        if len(x) == 0:
            return
        x = x.double()
        mean = x.mean()
        part_mean, squares, low, high = torch.stack([mean, (x - mean).square().sum(), x.min(), x.max()]).tolist()
        total, delta = self.count + len(x), part_mean - self.mean
        self.sum_of_squares += squares + delta**2 * self.count * len(x) / total
        self.mean += delta * len(x) / total
        self.min, self.max, self.count = min(self.min, low), max(self.max, high), total


class RunningSummary:
    """Gathers numbers, and summarises all since the last `take`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all numbers."""
        self._summary, self._num_waiting = Summary(), 0
        self._waiting: list[Tensor] = []

    def add(self, numbers: Tensor) -> None:
        """Take in a copy of numbers of any shape."""
        self._waiting.append(numbers.detach().clone())  # what was collected lies in memory that will be overwritten
        self._num_waiting += numbers.numel()
        if len(self._waiting) >= MAX_PARTS or self._num_waiting >= MAX_NUMBERS:
            self._merge()

    def take(self) -> Summary:
        """Return the summary, and begin another."""
        self._merge()
        summary, self._summary = self._summary, Summary()
        return summary

    def state_dict(self) -> State:
        """Return the summary so far."""
        self._merge()
        return dict(to_state(self._summary))

    def begin_with(self, summary: Summary) -> None:
        """Go on with a summary that was saved."""
        self.clear()
        self._summary = summary

    def _merge(self) -> None:
        if not self._waiting:
            return
        is_even = len({part.shape for part in self._waiting}) == 1  # a part of one number is not worth a call
        joined = torch.stack(self._waiting) if is_even else torch.cat([part.flatten() for part in self._waiting])
        self._summary.merge(joined.flatten())
        self._waiting, self._num_waiting = [], 0
