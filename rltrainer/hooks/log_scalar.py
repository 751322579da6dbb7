"""Logging of one number: of the data of a training step, or of its update."""

import dataclasses
import math
from collections.abc import Collection
from typing import Any, Literal

import torch
from torch import Tensor

from rltrainer.errors import ParamsError
from rltrainer.hooks.hook import TrainerContext, TrainerHook, Values, field_names
from rltrainer.interval import Every, as_every
from rltrainer.tree import Tree
from rltrainer.types import Rollout, State
from rltrainer.validation.field_rules import AnyText, Flag, NonNegativeInt, checked
from rltrainer.validation.suggestions import did_you_mean

# Parts wait on their device until there are so many parts, or so many numbers in them: no step waits for a GPU.
MAX_PARTS = 256
MAX_NUMBERS = 1 << 20
# An unknown metric is an error after this many updates in a row, because some metrics are not in every update.
MAX_MISSES = 10

Reduction = Literal["mean", "sum", "min", "max"]


@dataclasses.dataclass(kw_only=True)
class MetricState:
    """Updates in a row that lacked the metric of a hook."""

    num_misses: NonNegativeInt = 0


def find_metric(hook: TrainerHook, field: str, ctx: TrainerContext, others: Collection[str]) -> Tensor | float | None:
    """Return a metric [] of this training step's update; None without an update, or if the update lacks it.

    The hook's state counts the misses. `field` is its argument with the name, and `others` are further possible names,
    for the text of the `ParamsError` after the last miss.
    """
    if ctx.result is None or ctx.result.num_gradient_steps == 0:  # PPO's `target_kl` may leave out all of them
        return None
    name, state = getattr(hook, field), hook.state
    found = ctx.result.metrics.get(name)
    state.num_misses = 0 if found is not None else state.num_misses + 1
    if state.num_misses >= MAX_MISSES and not ctx.algorithm.may_report(name):
        known = [*others, *dict.fromkeys((*ctx.result.metrics, *ctx.algorithm.occasional_metrics))]
        rule, hint = f"must be one of {', '.join(known)}", did_you_mean(name, known).strip()
        raise ParamsError.about(type(hook).__name__, field, rule, name, hint)
    return found


@dataclasses.dataclass
class _Summary:
    count: NonNegativeInt = 0
    mean: float = 0.0
    sum_of_squares: float = 0.0  # of distances from the mean
    min: float = math.inf
    max: float = -math.inf

    def problem(self) -> str | None:
        return "sum_of_squares: is negative" if self.sum_of_squares < 0 else None

    @property
    def sum(self) -> float:
        return self.mean * self.count

    def merge(self, x: Tensor) -> None:
        """Merge numbers [M] in float64 (Chan et al. 1979); waits for their device."""
        x = x.double()
        mean = x.mean()
        part_mean, squares, low, high = torch.stack([mean, (x - mean).square().sum(), x.min(), x.max()]).tolist()
        # M2 = M2_a + M2_b + delta^2 n_a n_b / n: stable for a large mean with a small deviation.
        total, delta = self.count + len(x), part_mean - self.mean
        self.sum_of_squares += squares + delta**2 * self.count * len(x) / total
        self.mean += delta * len(x) / total
        self.min, self.max, self.count = min(self.min, low), max(self.max, high), total


@dataclasses.dataclass(kw_only=True)
class _LogScalarState(MetricState):
    summary: _Summary = dataclasses.field(default_factory=_Summary)


class LogScalar(TrainerHook):
    """Logs the mean, sum, minimum or maximum of one key: `LogScalar("reward")` logs `reward_mean`.

    With an interval it logs the reduction of all numbers since the last log; without one it reduces each training
    step's numbers, and the log's rows hold the means of these. Invalid steps do not count.

    Args:
        key: a field of the batch (`"reward"`, `"action"`, `"obs.position"` of a Dict), a column of its `extra`, or a
            metric of the last update (`"critic_loss"`); the first of these that exists, else a `ParamsError` in the
            run. Warm-up logs no metrics.
        reduction: of the numbers.
        every: the interval, an int in training steps; None: each training step.
        std: also log the population's standard deviation, as `reward_std`.
        log_pbar: also show the numbers on the progress bar.
        log_as: what the logged names start with; None takes the key.
    """

    state_class = _LogScalarState

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
        self.key = checked("LogScalar", "key", key, AnyText)
        self.reduction = checked("LogScalar", "reduction", reduction, Reduction)
        self.every = None if every is None else as_every("LogScalar", every)
        self.std = checked("LogScalar", "std", std, Flag)
        self.log_pbar = checked("LogScalar", "log_pbar", log_pbar, Flag)
        self.prefix = checked("LogScalar", "log_as", log_as, AnyText | None) or self.key
        self._path = tuple(self.key.split("."))
        self.reset()

    def post_steps_log(self, ctx: TrainerContext, batch: Any) -> Values | None:
        """Return the numbers, if they are due."""
        numbers = self._find(ctx, batch)
        if self.every is None:
            if numbers is None:
                return None
            # As tensors: no step waits for a device.
            if numbers.numel() == 1:  # one env step with its update: in a third of the time
                one = float(numbers) if numbers.is_cpu else numbers.reshape(()).to(torch.float32, copy=True)
                return self._named(one, 0.0)
            numbers = numbers.float()
            return self._named(getattr(numbers, self.reduction)(), numbers.std(correction=0) if self.std else None)
        if numbers is not None:
            # A copy: the next collection overwrites the memory of the batch.
            self._waiting.append(numbers.detach().clone())
            self._num_waiting += numbers.numel()
            if len(self._waiting) >= MAX_PARTS or self._num_waiting >= MAX_NUMBERS:
                self._merge()
        if not ctx.crossed(self.every):
            return None
        self._merge()
        summary, self.state.summary = self.state.summary, _Summary()
        if not summary.count:
            return None
        return self._named(getattr(summary, self.reduction), math.sqrt(summary.sum_of_squares / summary.count))

    def reset(self) -> None:
        """Forget the numbers of an earlier run."""
        self.state = _LogScalarState()
        self._waiting: list[Tensor] = []
        self._num_waiting = 0

    def state_dict(self) -> State:
        """Return the summary since the last log."""
        self._merge()
        return super().state_dict()

    def _merge(self) -> None:
        if self._waiting:
            # One call for all parts: hundreds of small ones would cost more than the training step.
            is_even = len({part.shape for part in self._waiting}) == 1  # one number each: a call per part would cost
            joined = torch.stack(self._waiting) if is_even else torch.cat([part.flatten() for part in self._waiting])
            self.state.summary.merge(joined.flatten())
            self._waiting, self._num_waiting = [], 0

    def _named(self, value: Any, std: Any) -> Values:
        values = {f"{self.prefix}_{self.reduction}": value}
        if self.std:
            values[f"{self.prefix}_std"] = std
        return values | {"log_pbar": True} if self.log_pbar else values

    def _find(self, ctx: TrainerContext, batch: Any) -> Tensor | None:
        """Return the numbers of the key, of any shape; None if there are none in this training step."""
        value: Tree = batch
        for part in self._path:
            value = _part(value, part)
            if value is None:
                found = find_metric(self, "key", ctx, [*field_names(batch.__class__), *batch.extra])
                return None if found is None else torch.as_tensor(found).detach()
        if not isinstance(value, Tensor):
            hint = f"It has parts: {', '.join(map(str, value))}."
            raise ParamsError.about("LogScalar", "key", "must name a tensor", self.key, hint)
        numbers = value.detach()
        if isinstance(batch, Rollout) and numbers.shape[:2] == batch.valid.shape and not batch.valid.all():
            numbers = numbers[batch.valid]
        return numbers if numbers.numel() else None


def _part(value: Any, name: str) -> Any:
    """Return a part of a batch or tree, or a column of a batch's `extra`; None if there is none."""
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, tuple):
        return value[int(name)] if name.isdecimal() and int(name) < len(value) else None
    if isinstance(value, Tensor):
        return None
    return getattr(value, name) if name in value.__dataclass_fields__ else value.extra.get(name)
