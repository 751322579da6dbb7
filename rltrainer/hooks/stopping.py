"""Hooks that end a run: when a number no longer improves, and after so many episodes."""

import dataclasses
from typing import Any, Literal

from rltrainer.collect import CollectStats
from rltrainer.errors import ParamsError
from rltrainer.functional.means import Part, floats, gather, merge
from rltrainer.hooks.hook import TrainerContext, TrainerHook
from rltrainer.hooks.log_scalar import MetricState, find_metric
from rltrainer.interval import Every, as_every
from rltrainer.validation.field_rules import AnyText, NonNegativeFloat, NonNegativeInt, PositiveInt, checked

Mode = Literal["max", "min"]


@dataclasses.dataclass
class _EarlyStoppingState(MetricState):
    best: float | None = None
    num_bad: NonNegativeInt = 0  # looks in a row without an improvement
    num_looks: NonNegativeInt = 0
    # Values since the last look.
    gathered: list[Part] = dataclasses.field(default_factory=list)

    def problem(self) -> str | None:
        is_other = any(part.values.keys() != {"value"} for part in self.gathered)
        return "gathered: expected parts of one 'value'" if is_other else None


class EarlyStopping(TrainerHook):
    """Ends the run when a number has not improved in `patience` consecutive looks at it.

    The first value is the first best. A later value improves on it if it is better by more than `min_delta`; NaN never
    does.

    Args:
        metric: `"score"` of test steps; `"return"`, the mean return of training episodes; or a metric of updates, such
            as `"loss"`. A look at the last two takes their mean since the look before.
        mode: whether larger or smaller is better.
        patience: looks without an improvement that end the run.
        min_delta: an improvement must be larger.
        every: between two looks, an int in training steps; a score has looks in test steps only. None: each test step,
            or each epoch.
        min_looks: first looks that never count against the patience.

    Raises:
        ParamsError: an argument breaks its rule; or, in the run, there is no such metric, or there are no test steps.
    """

    state_class = _EarlyStoppingState

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
        self.metric = checked(owner, "metric", metric, AnyText)
        self.mode = checked(owner, "mode", mode, Mode)
        self.patience = checked(owner, "patience", patience, PositiveInt)
        self.min_delta = checked(owner, "min_delta", min_delta, NonNegativeFloat)
        self.min_looks = checked(owner, "min_looks", min_looks, NonNegativeInt)
        default = None if metric == "score" else Every(1, "epoch")
        self.every = default if every is None else as_every(owner, every)
        self.state = _EarlyStoppingState()

    def setup(self, ctx: TrainerContext) -> None:
        """Check that there are test steps if they give the score; else raise a `ParamsError`."""
        if self.metric == "score" and ctx.params.test_collector is None:
            hint = "Pass TrainerParams.test_collector, or look at 'return' or a loss."
            raise ParamsError.about("EarlyStopping", "metric", "needs test steps", self.metric, hint)

    def test_log(self, ctx: TrainerContext, stats: CollectStats) -> None:
        """Look at the score of a test step."""
        if self.metric == "score" and ctx.score is not None and (self.every is None or ctx.crossed(self.every)):
            self._look(ctx, ctx.score)

    def post_steps(self, ctx: TrainerContext) -> None:
        """Gather the training step's value, and look at the mean if that is due."""
        if self.metric == "score":
            return
        if self.metric == "return":
            stats = ctx.collect_stats
            if stats is not None and stats.num_collected_episodes:
                self._gather(float(stats.returns.mean()), stats.num_collected_episodes)
        else:
            value = find_metric(self, "metric", ctx, ("score", "return"))
            if value is not None and ctx.result is not None:
                self._gather(value, ctx.result.counts.get(self.metric, ctx.result.num_gradient_steps))
        if self.every is not None and ctx.crossed(self.every) and self.state.gathered:
            mean = floats(merge(self.state.gathered).values)["value"]
            self.state.gathered = []
            self._look(ctx, mean)

    def _gather(self, value: Any, weight: float) -> None:
        gather(self.state.gathered, Part({"value": value}, weight), merge)

    def _look(self, ctx: TrainerContext, value: float) -> None:
        state, best = self.state, self.state.best
        state.num_looks += 1
        # NaN compares False with every number: it is neither a first best nor a gain.
        gain = 0.0 if best is None else (value - best if self.mode == "max" else best - value)
        if (best is None and value == value) or gain > self.min_delta:
            state.best, state.num_bad = value, 0
            return
        state.num_bad += state.num_looks > self.min_looks
        if state.num_bad >= self.patience:
            found = "was no number" if best is None else f"has not improved on {best:.6g}"
            ctx.request_stop(f"{self.metric} {found} in {self.patience} looks")


@dataclasses.dataclass
class _MaxEpisodesState:
    num_ended: NonNegativeInt = 0


class MaxEpisodes(TrainerHook):
    """Ends the run after the training step in which `num_episodes` training episodes have ended, over all envs."""

    state_class = _MaxEpisodesState

    def __init__(self, num_episodes: int) -> None:
        self.num_episodes = checked("MaxEpisodes", "num_episodes", num_episodes, PositiveInt)
        self.state = _MaxEpisodesState()

    def post_steps(self, ctx: TrainerContext) -> None:
        """Count, and end the run at the limit."""
        if ctx.collect_stats is not None:
            self.state.num_ended += ctx.collect_stats.num_collected_episodes
        if self.state.num_ended >= self.num_episodes:
            ctx.request_stop(f"{self.state.num_ended} training episodes have ended")
