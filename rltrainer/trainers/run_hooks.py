"""The hooks of a run, called with its context; nothing is done where there are none."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

from torch import Tensor

from rltrainer.algorithms import Algorithm, OnPolicyAlgorithm
from rltrainer.collect import CollectStats
from rltrainer.collect.data_source import Process
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.hooks import HookRunner
from rltrainer.hooks.lent import lent
from rltrainer.hooks.returned import ARE_NUMBERS, are_numbers
from rltrainer.interval import Every, Unit
from rltrainer.plan import UpdateCallbacks
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


class RunContext:
    """The `TrainerContext` of a trainer's hooks."""

    def __init__(self, algorithm: Algorithm, params: TrainerParams, log: RunLog, state: RunState) -> None:
        self.algorithm, self.params, self.state, self._log = algorithm, params, state, log
        self.losses: dict[str, Tensor] = {}
        self.result: UpdateResult | None = None
        self.collect_stats: CollectStats | None = None
        self._num_steps_within, self._num_open_steps = 0, 0
        self._is_epochs_end = False
        # Where intervals begin, and what the clock says until the next look at it: every second is in one of them.
        counts = self._counts()
        self._looked_at = dict.fromkeys(("training_step", "gradient_step", "test_step"), counts["second"])
        self._here = self._step_began = counts, counts["second"]

    @property
    def epoch(self) -> int:
        """The epochs that have begun."""
        return self.state.counters.epoch

    @property
    def env_step(self) -> int:
        """The env steps of training; 0 offline."""
        return self.state.counters.env_step

    @property
    def update_step(self) -> int:
        """The update steps that are done."""
        return self.state.counters.update_step

    @property
    def gradient_step(self) -> int:
        """The gradient steps that are done, those of the update step under way too."""
        return self.state.counters.gradient_step + self._num_steps_within

    @property
    def training_step(self) -> int:
        """The training steps that have begun."""
        return self.state.training_step

    @property
    def score(self) -> float | None:
        """The score of the last test step; None before one."""
        return self.state.score

    def count(self, unit: Unit) -> float:
        """Return how many of a unit are done; see `TrainerContext`."""
        if unit == "epoch":
            return self.epoch - (not self._is_epochs_end)
        return time.monotonic() if unit == "second" else getattr(self, unit)

    def crossed(self, every: Every) -> bool:
        """Return whether an interval has become due; see `TrainerContext`."""
        if not isinstance(every, Every) or (every.unit == "env_step" and self._log.unit != every.unit):
            rule = "must be an Every, in what the trainer counts"
            raise ParamsError(field_error_text("TrainerContext.crossed", "every", rule, every))
        since, clock = self._here
        return every.crossed(since[every.unit], clock if every.unit == "second" else self.count(every.unit))

    def request_stop(self, reason: str) -> None:
        """End the run after this training step and a last test step."""
        if self.state.stop_request is None:
            self.state.stop_request = f"hook: {reason}"

    def log(self, values: Mapping[str, Any]) -> None:
        """Take numbers into the means of the next row of the log."""
        if not are_numbers(values):
            raise TypeError(field_error_text("TrainerContext.log", "values", ARE_NUMBERS, values))
        self.take_in("training", lent(dict(values)), {})

    def take_in(self, kind: Literal["training", "update"], values: Mapping[str, Any], shown: Mapping[str, Any]) -> None:
        """Take numbers into the log's next row of this kind, and show some on the bar."""
        self._log.take_in(kind, values, shown)

    def begin_training_step(self) -> None:
        """Forget the last one, and look at intervals from here on."""
        self.result = self.collect_stats = None
        self._is_epochs_end = False
        self._step_began = self._here = self._look("training_step")

    def end_update(self, result: UpdateResult | None, is_epochs_end: bool) -> None:
        """Note the outcome of an update step, whose gradient steps the run has counted by now."""
        self.result = result
        self._num_steps_within, self._here, self._is_epochs_end = 0, self._step_began, is_epochs_end
        self._num_open_steps = 0

    def begin_gradient_step(self) -> None:
        """Forget the losses of the one before, and count it if its end was not told, as of a step that was skipped."""
        self.losses.clear()
        self._num_steps_within += self._num_open_steps
        self._num_open_steps = 1
        self._here = self._look("gradient_step")

    def end_gradient_step(self, result: UpdateResult) -> None:
        """Count it."""
        self._num_steps_within += result.num_gradient_steps
        self._num_open_steps = 0

    @contextmanager
    def in_test_step(self) -> Iterator[None]:
        """Look at intervals since the epoch of this test step began, of seconds since the last one."""
        here, record = self._here, self.state.record
        self._here = since, _ = self._look("test_step")
        if record is not None:
            num_gradient_steps = sum(update.num_gradient_steps for update in record.updates)
            since["env_step"] -= record.num_env_steps
            since["training_step"] -= record.num_training_steps
            since["update_step"] -= record.num_update_steps
            since["gradient_step"] -= num_gradient_steps
            since["epoch"] = self.epoch - 1
        try:
            yield
        finally:
            self._here = here  # one in training is within a training step

    def _look(self, place: str) -> tuple[dict[Unit, float], float]:
        """Return what is counted now, of seconds what the clock said at the last look from here; and the clock."""
        since = self._counts()
        clock, since["second"] = since["second"], self._looked_at[place]
        self._looked_at[place] = clock
        return since, clock

    def _counts(self) -> dict[Unit, float]:
        """Return the count of each unit; taken in every training step, so without a call of ours for each."""
        counters = self.state.counters
        return {
            "env_step": counters.env_step,
            "update_step": counters.update_step,
            "gradient_step": counters.gradient_step + self._num_steps_within,
            "training_step": self.state.training_step,
            "epoch": counters.epoch - (not self._is_epochs_end),
            "second": time.monotonic(),
        }
