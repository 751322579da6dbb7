"""Early stopping: a run ends when a number has not improved for some time."""

import dataclasses
from typing import Annotated, Any, Literal

from rltrainer.collect import CollectStats
from rltrainer.errors import CheckpointError, ParamsError, field_error_text
from rltrainer.functional.means import Part, floats, gather, merge
from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook
from rltrainer.hooks.update_metric import UpdateMetric
from rltrainer.interval import Every, as_every
from rltrainer.state.typed_state import from_state, to_state
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import NonNegativeFloat, NonNegativeInt, PositiveInt, Rule, checked

Metric = Annotated[str, Rule("a name", lambda v: isinstance(v, str) and bool(v))]
Mode = Literal["max", "min"]


class EarlyStopping(TrainerHook):
    """Ends the run when a number has not improved in `patience` looks at it, one after the other.

    The first value is the first best. A value improves on it if it is better by more than `min_delta`; NaN never does.

    Args:
        metric: `"score"`, that of test steps; `"return"`, the mean return of training episodes; or a number of updates,
            such as `"loss"`. Of the last two the mean since the last look is looked at.
        mode: whether more is better, or less.
        patience: looks without an improvement that end the run.
        min_delta: the least that counts as an improvement, exclusive.
        min_looks: looks at the beginning that never count as one without an improvement.
        every: between two looks, an int in epochs; a score is looked at in test steps only. None: each test step, or
            each epoch.

    Raises:
        ParamsError: an argument breaks its rule, or there is no such number.
    """

    def __init__(
        self,
        metric: str = "score",
        mode: Mode = "max",
        patience: int = 10,
        min_delta: float = 0.0,
        every: int | Every | None = None,
        min_looks: int = 0,
    ) -> None:
        owner = "EarlyStopping"
        self.metric = checked(owner, "metric", metric, Metric)
        self.mode = checked(owner, "mode", mode, Mode)
        self.patience = checked(owner, "patience", patience, PositiveInt)
        self.min_delta = checked(owner, "min_delta", min_delta, NonNegativeFloat)
        self.min_looks = checked(owner, "min_looks", min_looks, NonNegativeInt)
        default = None if metric == "score" else Every(1, "epoch")
        self.every = default if every is None else as_every(owner, every, "epoch")
        self._metric = UpdateMetric(owner, "metric", metric)
        self._best: float | None = None
        self._num_bad = self._num_looks = 0
        self._gathered: list[Part] = []

    def setup(self, ctx: TrainerContext) -> None:
        """Check that there are test steps, if they give the score."""
        if self.metric == "score" and ctx.params.test_collector is None:
            hint = "Pass TrainerParams.test_collector, or look at 'return' or a loss."
            raise ParamsError(field_error_text("EarlyStopping", "metric", "needs test steps", self.metric, hint))

    def test_log(self, ctx: TrainerContext, stats: CollectStats) -> None:
        """Look at the score of a test step."""
        if self.metric == "score" and ctx.score is not None and (self.every is None or ctx.crossed(self.every)):
            self._look(ctx, ctx.score)

    def post_steps(self, ctx: TrainerContext) -> None:
        """Take in what a training step says, and look at the mean, if it is due."""
        if self.metric == "score":
            return
        self._take_in(ctx)
        if self.every is not None and ctx.crossed(self.every) and self._gathered:
            mean = floats(merge(self._gathered).values)[self.metric]
            self._gathered = []
            self._look(ctx, mean)

    def reset(self) -> None:
        """Forget an earlier run."""
        self._best, self._gathered = None, []
        self._num_bad = self._num_looks = self._metric.num_misses = 0

    def state_dict(self) -> State:
        """Return the best value, how many looks were no better, and what is not looked at yet."""
        counts = self._metric.num_misses, self._num_looks
        state = EarlyStoppingState(self._best, self._num_bad, self._gathered, *counts)
        return dict(to_state(state))

    def prepare_load(self, state: State) -> Load:
        """Check it, and return what goes on with it."""
        found = from_state(EarlyStoppingState, state, type(self).__name__)
        if any(part.values.keys() != {self.metric} for part in found.gathered):
            raise CheckpointError(f"{type(self).__name__}.gathered: expected values of {self.metric!r} alone")

        def load() -> None:
            self._best, self._num_bad, self._gathered = found.best, found.num_bad, found.gathered
            self._metric.num_misses, self._num_looks = found.num_misses, found.num_looks

        return load

    def _take_in(self, ctx: TrainerContext) -> None:
        if self.metric == "return":
            stats = ctx.collect_stats
            if stats is not None and stats.num_collected_episodes:
                self._gather(float(stats.returns.mean()), stats.num_collected_episodes)
        elif (value := self._metric.find(ctx, lambda: ("score", "return"))) is not None and ctx.result is not None:
            self._gather(value, ctx.result.counts.get(self.metric, ctx.result.num_gradient_steps))

    def _gather(self, value: Any, weight: float) -> None:
        gather(self._gathered, Part({self.metric: value}, weight), merge)

    def _look(self, ctx: TrainerContext, value: float) -> None:
        best, self._num_looks = self._best, self._num_looks + 1
        gain = 0.0 if best is None else (value - best if self.mode == "max" else best - value)
        if (best is None and value == value) or gain > self.min_delta:
            self._best, self._num_bad = value, 0
            return
        self._num_bad += self._num_looks > self.min_looks
        if self._num_bad >= self.patience:
            what = "was no number" if best is None else f"has not improved on {best:.6g}"
            ctx.request_stop(f"{self.metric} {what} in {self.patience} looks")


@dataclasses.dataclass
class EarlyStoppingState:
    """State of an `EarlyStopping`."""

    best: float | None
    num_bad: NonNegativeInt
    gathered: list[Part]
    num_misses: NonNegativeInt
    num_looks: NonNegativeInt = 0
