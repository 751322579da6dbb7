"""Logging of one number: of the data of a training step, or of its update."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook, Values
from rltrainer.hooks.update_metric import UpdateMetric
from rltrainer.interval import Every, as_every
from rltrainer.state.typed_state import from_state, to_state
from rltrainer.tree import Tree
from rltrainer.types import Load, Rollout, State
from rltrainer.validation.field_rules import Flag, NonNegativeInt, Rule, checked

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


Key = Annotated[str, Rule("a name", lambda v: isinstance(v, str) and bool(v))]
Reduction = Literal["mean", "sum", "min", "max"]


class LogScalar(TrainerHook):
    """Logs the mean, sum, least or greatest of one key: `LogScalar("reward")` logs `reward_mean`.

    With an interval it logs what all numbers since the last time come to; without one, each training step's, and the
    log's rows hold the means of these. Cells that are not valid do not count.

    Args:
        key: a field of the batch (`"reward"`, `"action"`, `"obs.position"` of a Dict), a column of its `extra`, or a
            number of the last update (`"critic_loss"`); the first of these that there is. During warm-up numbers of
            updates are left out.
        reduction: what is logged of it.
        every: the interval, an int in training steps; None: each training step.
        std: also log the standard deviation, the population's, as `reward_std`.
        log_pbar: also show them on the progress bar.
        log_as: what the logged names begin with, instead of the key.

    Raises:
        ParamsError: an argument breaks its rule; or, in the run, there is no such key.
    """

    def __init__(
        self,
        key: str,
        reduction: Reduction = "mean",
        *,
        every: int | Every | None = None,
        std: bool = False,
        log_pbar: bool = False,
        log_as: str | None = None,
    ) -> None:
        self.key = checked("LogScalar", "key", key, Key)
        self.reduction = checked("LogScalar", "reduction", reduction, Reduction)
        self.every = None if every is None else as_every("LogScalar", every, "training_step")
        self.std = checked("LogScalar", "std", std, Flag)
        self.log_pbar = checked("LogScalar", "log_pbar", log_pbar, Flag)
        self.prefix = checked("LogScalar", "log_as", log_as, Key | None) or self.key
        self._path = tuple(self.key.split("."))
        self._summary, self._metric = RunningSummary(), UpdateMetric("LogScalar", "key", self.key)

    def post_steps_log(self, ctx: TrainerContext, batch: Any) -> Values | None:
        """Return the numbers, if they are due."""
        numbers = self._find(ctx, batch)
        if self.every is None:
            if numbers is None:
                return None
            return self._named(_One(numbers) if numbers.numel() == 1 else _Numbers(numbers))
        if numbers is not None:
            self._summary.add(numbers)
        if not ctx.crossed(self.every):
            return None
        summary = self._summary.take()
        return self._named(summary) if summary.count else None

    def reset(self) -> None:
        """Forget the numbers of an earlier run."""
        self._summary.clear()
        self._metric.num_misses = 0

    def state_dict(self) -> State:
        """Return what was gathered since the last log."""
        return {"summary": self._summary.state_dict(), "num_misses": self._metric.num_misses}

    def prepare_load(self, state: State) -> Load:
        """Check it, and return what goes on with it."""
        found = from_state(LogScalarState, state, type(self).__name__)

        def load() -> None:
            self._summary.begin_with(found.summary)
            self._metric.num_misses = found.num_misses

        return load

    def _named(self, summary: Any) -> Values:
        values = {f"{self.prefix}_{self.reduction}": getattr(summary, self.reduction)}
        if self.std:
            values[f"{self.prefix}_std"] = summary.std
        return values | {"log_pbar": True} if self.log_pbar else values

    def _find(self, ctx: TrainerContext, batch: Any) -> Tensor | None:
        """Return the numbers of the key, of any shape; None if they are an update's, and it has none of them."""
        value: Tree = batch
        for part in self._path:
            value = _part(value, part)
            if value is None:
                return self._find_metric(ctx, batch)
        if not isinstance(value, Tensor):
            hint = f"It has parts: {', '.join(map(str, value))}."
            raise ParamsError(field_error_text("LogScalar", "key", "must name a tensor", self.key, hint))
        return self._counted(value.detach(), batch)

    def _counted(self, numbers: Tensor, batch: Any) -> Tensor | None:
        """Return the numbers that count; None if none does."""
        if isinstance(batch, Rollout) and numbers.shape[:2] == batch.valid.shape and not batch.valid.all():
            numbers = numbers[batch.valid]
        return numbers if numbers.numel() else None

    def _find_metric(self, ctx: TrainerContext, batch: Any) -> Tensor | None:
        found = self._metric.find(ctx, lambda: [*(field.name for field in dataclasses.fields(batch)), *batch.extra])
        return None if found is None else torch.as_tensor(found).detach()


@dataclasses.dataclass
class LogScalarState:
    """State of a `LogScalar`."""

    summary: Summary
    num_misses: NonNegativeInt


class _One:
    """The summary of one number, as of an env step with its update: in a third of the time."""

    std = 0.0

    def __init__(self, number: Tensor) -> None:
        value = float(number) if number.is_cpu else number.reshape(()).to(torch.float32, copy=True)
        self.mean = self.sum = self.min = self.max = value


class _Numbers:
    """The summary of numbers as tensors, for which nobody waits."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers.float()

    def __getattr__(self, name: str) -> Tensor:
        value: Tensor = getattr(self._numbers, name)(**({"correction": 0} if name == "std" else {}))
        return value


def _part(value: Any, name: str) -> Any:
    """Return a part of a batch or tree; of a batch also a column of its `extra`. None if it has none of this name."""
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, tuple):
        return value[int(name)] if name.isdecimal() and int(name) < len(value) else None
    if isinstance(value, Tensor):
        return None
    return getattr(value, name) if name in value.__dataclass_fields__ else value.extra.get(name)
