"""The points of a run at which a user's code is called."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from rltrainer.collect import CollectStats
from rltrainer.errors import CheckpointError
from rltrainer.hooks.context import TrainerContext
from rltrainer.interval import Every
from rltrainer.types import Load, State
from rltrainer.validation.suggestions import ExplainsArguments

Values = Mapping[str, Any]
"""Numbers by name; `"log_pbar": True` among them shows them on the progress bar too."""


class TrainerHook(metaclass=ExplainsArguments):
    """Code that runs at some points of a run: subclass it, and override those points.

    In the order of a run: `setup`; in each training step `batch_process`, `pre_steps_log`, `pre_optim_steps`, in each
    gradient step `process_optim_batch`, for each loss `post_loss` and `optimizer`, then `post_optim` and
    `post_optim_log`, and at the training step's end `post_steps` and `post_steps_log`; after a test step `test_log`; at
    last `shutdown`. During warm-up the points from `pre_optim_steps` to `post_optim_log` are left out.

    At each point the hooks are called in the order of `TrainerParams.hooks`. A point that none overrides costs nothing.
    The points inside an update break the graph of a compiled one there, which may round otherwise.

    Attributes:
        name: under which its state is saved; None takes its class, numbered from the second of them on.
        every: its interval, if it acts at one; a trainer without that unit refuses it.
    """

    name: str | None = None
    every: Every | None = None

    DATA: ClassVar[tuple[str, ...]] = ("batch_process", "process_optim_batch", "optimizer")
    """Points that may change what is learned: a resumed run needs the hooks that override one."""
    NOT_ON_POLICY: ClassVar[tuple[str, ...]] = ()
    """Points that it overrides for other algorithms only; on policy they are not called, and cost nothing."""

    def setup(self, ctx: TrainerContext) -> None:
        """Prepare; called when a run begins or goes on, before its first step."""

    def batch_process(self, ctx: TrainerContext, batch: Any) -> Any:
        """Return what takes the place of newly collected data, or None.

        Args:
            ctx: the run.
            batch: on policy the `Rollout` [T, N] to learn from; off policy that of the cells about to be stored, of
                which another reward, action, observation or extra is stored instead; offline the sampled `Transitions`.
        """

    def pre_steps_log(self, ctx: TrainerContext, batch: Any) -> Values | None:
        """Return numbers to log of the data, before the update."""

    def pre_optim_steps(self, ctx: TrainerContext) -> None:
        """Act before the first gradient step of an update step."""

    def process_optim_batch(self, ctx: TrainerContext, minibatch: Any) -> Any:
        """Return what takes the place of a gradient step's minibatch, of the same shapes, or None."""

    def post_loss(self, ctx: TrainerContext, minibatch: Any) -> None:
        """Act when a loss is computed, `ctx.losses`, and no gradient taken yet."""

    def optimizer(self, ctx: TrainerContext, losses: dict[str, Tensor], step: Callable[[], None]) -> Any:
        """Return the loss whose gradient is taken instead, by the same name, or None.

        Args:
            ctx: the run.
            losses: the newest loss, by its name.
            step: takes the optimizer's step at once; if no hook calls it, that is done after the last one.
        """

    def post_optim(self, ctx: TrainerContext) -> None:
        """Act after a gradient step, unless an optimizer left its step out."""

    def post_optim_log(self, ctx: TrainerContext, minibatch: Any) -> Values | None:
        """Return numbers to log of a gradient step, where `post_optim` is called."""

    def post_steps(self, ctx: TrainerContext) -> None:
        """Act at the end of a training step."""

    def post_steps_log(self, ctx: TrainerContext, batch: Any) -> Values | None:
        """Return numbers to log at the end of a training step; `batch` as in `pre_steps_log`."""

    def test_log(self, ctx: TrainerContext, stats: CollectStats) -> Values | None:
        """Return numbers to log of a test step."""

    def shutdown(self, ctx: TrainerContext) -> None:
        """Clean up at the end of `Trainer.run`, also after an exception."""

    def reset(self) -> None:
        """Forget an earlier run: called when one begins from its start, before `setup`."""

    def seed(self, seed: int) -> None:
        """Seed its random numbers, if it draws any."""

    def state_dict(self) -> State:
        """Return what a resumed run needs of it."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Take over what `state_dict` returned; it comes from a file, and is looked at by `prepare_load`."""

    def prepare_load(self, state: State) -> Load:
        """Check what `state_dict` returned, and return what takes it over: `load_state_dict`, where that is overridden.

        What is wrong is found here before anything of the run has changed.

        Raises:
            CheckpointError: it is none of this hook's; the text names what is wrong.
        """
        if state and not overrides(self, "load_state_dict"):
            raise CheckpointError(
                f"{type(self).__name__}: the state has {next(iter(state))!r}, which this hook has not"
            )
        return partial(self.load_state_dict, state)


_NO_POINTS = ("reset", "seed", "state_dict", "load_state_dict", "prepare_load")
POINTS = tuple(
    name for name, value in vars(TrainerHook).items() if callable(value) and name[0] != "_" and name not in _NO_POINTS
)
"""The names of the points, in the order of a run."""


def overrides(hook: TrainerHook, *points: str) -> bool:
    """Return whether a hook overrides one of these points, in its class or on itself."""
    return any(point in vars(hook) or getattr(type(hook), point) is not getattr(TrainerHook, point) for point in points)
