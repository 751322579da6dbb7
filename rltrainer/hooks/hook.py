"""Code of a user at points of a run: the base class of hooks, one from a function, and the context that they see."""

import dataclasses
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from rltrainer.algorithms import Algorithm
from rltrainer.collect import CollectStats
from rltrainer.errors import ArgumentError, CheckpointError, ParamsError
from rltrainer.interval import Every, Unit
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.state.codec import from_state, to_state
from rltrainer.tree import map_tree
from rltrainer.types import Load, State, UpdateResult
from rltrainer.validation.field_rules import AnyText, a_callable, checked
from rltrainer.validation.suggestions import ExplainsArguments, did_you_mean

# The key of a logged mapping that puts its numbers on the progress bar.
SHOW = "log_pbar"
_PACKAGE = f"{__name__.partition('.')[0]}."


class TrainerContext:
    """A run as its hooks see it: the same object at every point.

    Attributes:
        losses: of the current gradient step so far, by name: "critic", "actor", ..., or "loss" for a single one. The
            newest is the last in `post_loss` and `optimizer`.
        collect_stats: of this training step; None before its collection, and offline.
        result: of this training step's update; None before it, and without an update.
        ranks: the place of this shard among the run's shards.
    """

    def __init__(self, algorithm: Algorithm, params: Any, state: Any, log: Any, ranks: Ranks = ALONE) -> None:
        self.algorithm, self.params, self._state, self._log, self.ranks = algorithm, params, state, log, ranks
        self.losses: dict[str, Tensor] = {}
        self.result: UpdateResult | None = None
        self.collect_stats: CollectStats | None = None
        self._num_steps_within, self._num_open_steps = 0, 0
        self._is_epochs_end = False
        # An interval of counts starts with the step at hand. An interval of seconds starts at the last look from the
        # same place, because time passes between two steps too: every second belongs to exactly one interval.
        counts = self._counts()
        self._looked_at = dict.fromkeys(("training_step", "gradient_step", "test_step"), counts["second"])
        self._here = self._step_began = counts, counts["second"]

    def once(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function in the first shard of a run alone; the others do not wait for it."""
        self.ranks.once(function, *args)

    @property
    def score(self) -> float | None:
        """The score of the last test step; None before one."""
        score: float | None = self._state.score
        return score

    @property
    def epoch(self) -> int:
        """The number of epochs begun."""
        return int(self._state.counters.epoch)

    @property
    def env_step(self) -> int:
        """The number of training env steps; 0 offline."""
        return int(self._state.counters.env_step)

    @property
    def update_step(self) -> int:
        """The number of update steps done."""
        return int(self._state.counters.update_step)

    @property
    def gradient_step(self) -> int:
        """The number of gradient steps done, within the current update step too."""
        return int(self._state.counters.gradient_step) + self._num_steps_within

    @property
    def training_step(self) -> int:
        """The number of training steps begun."""
        return int(self._state.training_step)

    def count(self, unit: Unit) -> float:
        """Return how many of a unit are done: complete epochs, the clock's reading for seconds."""
        return self._counts()[unit]

    def crossed(self, every: Every) -> bool:
        """Return whether an interval became due: in this training step, gradient step, or in `test_log` this epoch.

        An interval that is no `Every`, or of a unit that this run does not count, is a `ParamsError`.
        """
        if not isinstance(every, Every) or (every.unit == "env_step" and self._log.unit != every.unit):
            rule = "must be an Every, in a unit that the trainer counts"
            raise ParamsError.about("TrainerContext.crossed", "every", rule, every)
        since, clock = self._here
        return every.crossed(since[every.unit], clock if every.unit == "second" else self.count(every.unit))

    def request_stop(self, reason: str) -> None:
        """End the run after this training step and a last test step, with the stop reason `hook: <reason>`."""
        if self._state.stop_request is None:
            self._state.stop_request = f"hook: {reason}"

    def log(self, values: Mapping[str, Any]) -> None:
        """Add numbers by name to the means of the log's next row, as log points do; others are an `ArgumentError`."""
        if not are_numbers(values):
            raise ArgumentError.about("TrainerContext.log", "values", "must be a mapping from names to numbers", values)
        self._log.take_in("training", lent(dict(values)), {})

    def _begin_training_step(self) -> None:
        self.result = self.collect_stats = None
        self._is_epochs_end = False
        self._step_began = self._here = self._look("training_step")

    def _end_update(self, result: UpdateResult | None, is_epochs_end: bool) -> None:
        self.result = result
        self._num_steps_within, self._here, self._is_epochs_end = 0, self._step_began, is_epochs_end
        self._num_open_steps = 0

    def _begin_gradient_step(self) -> None:
        self.losses.clear()
        # A skipped step never reports its end: it is counted here, by the next one.
        self._num_steps_within += self._num_open_steps
        self._num_open_steps = 1
        self._here = self._look("gradient_step")

    def _end_gradient_step(self, result: UpdateResult) -> None:
        self._num_steps_within += result.num_gradient_steps
        self._num_open_steps = 0

    @contextmanager
    def _in_test_step(self) -> Iterator[None]:
        # Measure intervals from the start of this epoch on, intervals of seconds from the last test step on.
        here, record = self._here, self._state.record
        self._here = since, _ = self._look("test_step")
        if record is not None:
            since["env_step"] -= record.num_env_steps
            since["training_step"] -= record.num_training_steps
            since["update_step"] -= record.num_update_steps
            since["gradient_step"] -= sum(update.num_gradient_steps for update in record.updates)
            since["epoch"] = self.epoch - 1
        try:
            yield
        finally:
            self._here = here  # `test_in_training` makes a test step within a training step

    def _look(self, place: str) -> tuple[dict[Unit, float], float]:
        """Return where intervals start for a look from this place, and the clock's reading now."""
        since = self._counts()
        clock, since["second"] = since["second"], self._looked_at[place]
        self._looked_at[place] = clock
        return since, clock

    def _counts(self) -> dict[Unit, float]:
        # Read in every training step: a property call for each count would be a measurable cost.
        counters = self._state.counters
        return {
            "env_step": counters.env_step,
            "update_step": counters.update_step,
            "gradient_step": counters.gradient_step + self._num_steps_within,
            "training_step": self._state.training_step,
            "epoch": counters.epoch - (not self._is_epochs_end),
            "second": time.monotonic(),
        }


def are_numbers(values: object) -> bool:
    """Return whether this is a mapping from names to numbers; scalar tensors are numbers."""
    return isinstance(values, Mapping) and all(
        isinstance(name, str) and (name == SHOW or (hasattr(value, "__float__") and not getattr(value, "shape", ())))
        for name, value in values.items()
    )


field_names = cache(lambda kind: tuple(field.name for field in dataclasses.fields(kind)))


def lent(value: Any) -> Any:
    """Return a copy of a batch, statistics or a result, with arrays and tensors of its own."""
    if not dataclasses.is_dataclass(value):
        return map_tree(_copy, value)
    kind: Any = type(value)
    # Without `__init__`, whose checks the original has passed: a hook may need a copy in each gradient step.
    new = object.__new__(kind)
    for name in field_names(kind):
        part = getattr(value, name)
        object.__setattr__(new, name, part.clone() if type(part) is Tensor else map_tree(_copy, part))
    return new


def is_ours(function: Any) -> bool:
    """Return whether this library defines a function: its hooks change nothing in place, and need no copy."""
    return (getattr(function, "__module__", None) or "").startswith(_PACKAGE)


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


# Numbers by name; `"log_pbar": True` puts them on the progress bar too.
Values = Mapping[str, Any]


class TrainerHook(metaclass=ExplainsArguments):
    """Code that runs at some points of a run: subclass it, and override those points.

    The points stand here in the order of a run. Each gradient step calls the points from `process_optim_batch` to
    `post_optim_log`; warm-up leaves them out, and `pre_optim_steps`. At each point the hooks are called in the order
    of `TrainerParams.hooks`. A point that no hook overrides costs nothing. A point inside an update breaks the graph of
    a compiled update there, which may round differently.
    """

    name: str | None = None
    """The name of its state in checkpoints; None takes its class, numbered from the second on."""
    every: Every | None = None
    """Its interval, if it acts at one; a trainer that does not count its unit refuses the hook."""
    state_class: ClassVar[type[Any] | None] = None
    """A dataclass with a default for each field: checkpoints hold its instance, `self.state`, and `reset` renews it."""
    state: Any = None

    DATA: ClassVar[tuple[str, ...]] = ("batch_process", "process_optim_batch", "optimizer")
    """Points that may change what is learned: a resumed run needs the same hooks there."""
    NOT_ON_POLICY: ClassVar[tuple[str, ...]] = ()
    """Overridden points that are not called, and cost nothing, on policy."""

    def setup(self, ctx: TrainerContext) -> None:
        """Prepare, before the first step of a new or resumed run."""

    def batch_process(self, ctx: TrainerContext, batch: Any) -> Any:
        """Return a replacement of newly collected data, or None.

        `batch` is on policy the `Rollout` [T, N] to learn from; off policy the rollout about to be stored, with the
        replacement's reward, action, observation and extra; offline the sampled `Transitions`.
        """

    def pre_steps_log(self, ctx: TrainerContext, batch: Any) -> Values | None:
        """Return numbers to log of the data, before the update."""

    def pre_optim_steps(self, ctx: TrainerContext) -> None:
        """Act before the first gradient step of an update step."""

    def process_optim_batch(self, ctx: TrainerContext, minibatch: Any) -> Any:
        """Return a replacement of a gradient step's minibatch, of the same shapes, or None."""

    def post_loss(self, ctx: TrainerContext, minibatch: Any) -> None:
        """Act after a loss is computed, see `ctx.losses`, and before its gradient."""

    def optimizer(self, ctx: TrainerContext, losses: dict[str, Tensor], step: Callable[[], None]) -> Any:
        """Return another loss [] to differentiate, in place of the newest in `losses`, or None.

        `step()` takes the optimizer's step at once; if no hook calls it, the step follows the last hook.
        """

    def post_optim(self, ctx: TrainerContext) -> None:
        """Act after a gradient step, unless an optimizer skipped it."""

    def post_optim_log(self, ctx: TrainerContext, minibatch: Any) -> Values | None:
        """Return numbers to log of a gradient step; called where `post_optim` is."""

    def post_steps(self, ctx: TrainerContext) -> None:
        """Act at the end of a training step."""

    def post_steps_log(self, ctx: TrainerContext, batch: Any) -> Values | None:
        """Return numbers to log at the end of a training step; `batch` as in `pre_steps_log`."""

    def test_log(self, ctx: TrainerContext, stats: CollectStats) -> Values | None:
        """Return numbers to log of a test step."""

    def shutdown(self, ctx: TrainerContext) -> None:
        """Clean up at the end of `Trainer.run`, also after an exception."""

    def reset(self) -> None:
        """Forget an earlier run; called before `setup` when a run starts from its beginning."""
        if self.state_class is not None:
            self.state = self.state_class()

    def seed(self, seed: int) -> None:
        """Seed its random numbers, if it draws any."""

    def state_dict(self) -> State:
        """Return the state that a resumed run needs."""
        return {} if self.state_class is None else dict(to_state(self.state))

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; it comes from a file, and `prepare_load` checks it first."""

    def prepare_load(self, state: State) -> Load:
        """Check what `state_dict` returned, and return the function that restores it.

        Nothing of the run has changed yet. By default the types and rules of a `state_class` check its fields, with a
        `CheckpointError`, and any other state goes to `load_state_dict`.
        """
        if self.state_class is not None:
            for field in dataclasses.fields(self.state_class):
                if field.name not in state:  # its default is for a new run
                    raise CheckpointError(f"{type(self).__name__}.{field.name}: missing in the saved state")
            return partial(self._take_state, from_state(self.state_class, state, type(self).__name__))
        if state and not overrides(self, "load_state_dict"):
            name = next(iter(state))
            raise CheckpointError(f"{type(self).__name__}: the state has {name!r}, which this hook does not have")
        return partial(self.load_state_dict, state)

    def _take_state(self, state: Any) -> None:
        self.reset()  # this also forgets values that are not in the state yet
        self.state = state


_NO_POINTS = ("reset", "seed", "state_dict", "load_state_dict", "prepare_load")
# The names of the points, in the order of a run.
POINTS = tuple(
    name
    for name, value in vars(TrainerHook).items()
    if inspect.isfunction(value) and name[0] != "_" and name not in _NO_POINTS
)


def overrides(hook: TrainerHook, *points: str) -> bool:
    """Return whether a hook overrides one of these points, in its class or on itself."""
    return any(point in vars(hook) or getattr(type(hook), point) is not getattr(TrainerHook, point) for point in points)


class FunctionHook(TrainerHook):
    """Calls a function at one point of a run, such as `"post_steps"`, with the arguments of the point.

    `name` distinguishes several of them in a checkpoint. An unknown point, or a function that does not take the point's
    arguments, raises a `ParamsError`.
    """

    def __init__(self, point: str, fn: Callable[..., Any], name: str | None = None) -> None:
        if point not in POINTS:
            hint = did_you_mean(str(point), POINTS).strip()
            rule = f"must be a point of a hook: {', '.join(POINTS)}"
            raise ParamsError.about("FunctionHook", "point", rule, point, hint)
        signature = f"({', '.join([*inspect.signature(getattr(TrainerHook, point)).parameters][1:])})"
        takes = a_callable(signature)
        if not takes.accepts(fn):
            raise ParamsError.about("FunctionHook", "fn", f"must be {takes.text}, as {point} is given", fn)
        self.name = checked("FunctionHook", "name", name, AnyText | None)
        setattr(self, point, fn)
