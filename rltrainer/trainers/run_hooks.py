"""The hooks of a run, called with its context; nothing is done where there are none."""

from functools import partial
from typing import Any

from rltrainer.algorithms import Algorithm, OnPolicyAlgorithm
from rltrainer.collect import CollectStats
from rltrainer.collect.data_source import Process
from rltrainer.hooks import HookRunner
from rltrainer.hooks.lent import lent
from rltrainer.plan import UpdateCallbacks
from rltrainer.trainers.run_context import RunContext
from rltrainer.trainers.run_log import RunLog
from rltrainer.trainers.run_state import RunState
from rltrainer.trainers.trainer_params import TrainerParams
from rltrainer.types import UpdateResult


class RunHooks:
    """The calls of the loop at the points of its hooks."""

    def __init__(self, algorithm: Algorithm, params: TrainerParams, log: RunLog, state: RunState) -> None:
        self._runner = HookRunner(type(params).__name__, params.hooks, isinstance(algorithm, OnPolicyAlgorithm))
        self._new_context = partial(RunContext, algorithm, params, log)
        self._context = self._new_context(state)
        self.process: Process | None = self.process_batch if self._runner.has("batch_process") else None
        """The function that changes newly collected cells before they are stored; None if no hook does."""
        self.look_at_batch = self._runner.has("pre_steps_log", "post_steps_log")
        """True if a hook looks at newly collected data before or after the update."""

    def follow(self, state: RunState) -> None:
        """Let the context tell of this state from now on."""
        self._context = self._new_context(state)

    def callbacks(self) -> UpdateCallbacks:
        """Return who listens inside updates."""
        return self._runner.callbacks(self._context)

    def reset(self) -> None:
        """Let the hooks forget an earlier run."""
        self._runner.reset()

    def open(self) -> None:
        """Set the hooks up, unless they are."""
        self._runner.open(self._context)

    def close(self) -> None:
        """Shut down those that were set up."""
        self._runner.close(self._context)

    def begin_training_step(self) -> None:
        """Look at intervals from here on."""
        if self._runner:
            self._context.begin_training_step()

    def note_collection(self, stats: CollectStats) -> None:
        """Note the outcome of a collection step."""
        self._context.collect_stats = lent(stats) if self._runner.has_users else stats

    def process_batch(self, batch: Any) -> Any:
        """Return new data as the hooks make it."""
        return self._runner.replaced("batch_process", self._context, batch) if self._runner else batch

    def log_batch(self, batch: Any) -> None:
        """Log what hooks say of new data."""
        if self._runner:
            self._context.take_in("training", *self._runner.logged("pre_steps_log", self._context, batch))

    def begin_update(self) -> None:
        """Call the point before the first gradient step of an update step."""
        if self._runner:
            self._runner.act("pre_optim_steps", self._context)

    def end_training_step(self, batch: Any, result: UpdateResult | None, is_last: bool) -> None:
        """Call the points at the end of a training step; `is_last` of its epoch."""
        if self._runner:
            shown = lent(result) if self._runner.has_users and result is not None else result
            self._context.end_update(shown, is_last)
            self._runner.act("post_steps", self._context)
            self._context.take_in("training", *self._runner.logged("post_steps_log", self._context, batch))

    def log_test(self, stats: CollectStats) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what hooks log of a test step, and what of that they show on the bar."""
        with self._context.in_test_step():
            return self._runner.logged("test_log", self._context, stats)
