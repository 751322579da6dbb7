"""The points of a run at which user code is called: the base class of hooks, and a hook from one function."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from rltrainer.collect import CollectStats
from rltrainer.errors import CheckpointError, ParamsError, field_error_text
from rltrainer.hooks.context import TrainerContext
from rltrainer.interval import Every
from rltrainer.state.codec import from_state, to_state
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import AnyText, a_callable, checked
from rltrainer.validation.suggestions import ExplainsArguments, did_you_mean

# Numbers by name; `"log_pbar": True` puts them on the progress bar too.
Values = Mapping[str, Any]


class TrainerHook(metaclass=ExplainsArguments):
    """Code that runs at some points of a run: subclass it, and override those points.

    The points stand here in the order of a run. Each gradient step calls those from `process_optim_batch` to
    `post_optim_log`; warm-up leaves them out, and `pre_optim_steps`. At each point the hooks are called in the order
    of `TrainerParams.hooks`. A point that no hook overrides costs nothing. The points inside an update break the graph
    of a compiled one there, which may round differently.
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
    """Overridden points that are not called on policy, where they cost nothing then."""

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
        """Return another loss to differentiate, by the same name as the newest in `losses`, or None.

        `step()` takes the optimizer's step at once; if no hook calls it, that happens after the last hook.
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
        """Forget an earlier run; called when a run begins from its start, before `setup`."""
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

        Nothing of the run has changed yet. By default a `state_class` is read by the types and rules of its fields,
        and any other state goes to `load_state_dict`.
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
        self.reset()  # which also forgets values that are not in the state yet
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

    `name` distinguishes several of them in a checkpoint.
    """

    def __init__(self, point: str, fn: Callable[..., Any], name: str | None = None) -> None:
        if point not in POINTS:
            hint = did_you_mean(str(point), POINTS).strip()
            rule = f"must be a point of a hook: {', '.join(POINTS)}"
            raise ParamsError(field_error_text("FunctionHook", "point", rule, point, hint))
        signature = f"({', '.join([*inspect.signature(getattr(TrainerHook, point)).parameters][1:])})"
        takes = a_callable(signature)
        if not takes.accepts(fn):
            raise ParamsError(field_error_text("FunctionHook", "fn", f"must be {takes.text}, as {point} is given", fn))
        self.name = checked("FunctionHook", "name", name, AnyText | None)
        setattr(self, point, fn)
