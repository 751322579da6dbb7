"""The context of a run that a hook sees."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from rltrainer.algorithms import Algorithm
from rltrainer.collect import CollectStats
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.hooks.lent import lent
from rltrainer.interval import Every, Unit
from rltrainer.types import UpdateResult

SHOW = "log_pbar"
"""The name in a mapping that says whether its numbers are shown on the progress bar."""


def are_numbers(values: object) -> bool:
    """Return whether this is a mapping from names to numbers, of a hook to a log; scalar tensors are numbers."""
    return isinstance(values, Mapping) and all(map(_is_item, values.items()))


def _is_item(item: tuple[Any, Any]) -> bool:
    name, value = item
    return isinstance(name, str) and (name == SHOW or (hasattr(value, "__float__") and not getattr(value, "shape", ())))


class TrainerContext:
    """A run, as its hooks see it; the same object at every point.

    Args:
        algorithm: what is trained.
        params: the params of its trainer.
        state: the `RunState` that the trainer counts in.
        log: the `RunLog` that takes numbers in.

    Attributes:
        losses: the losses of the gradient step under way so far, by name: "critic", "actor", ...; "loss" where there is
            one. In `post_loss` and `optimizer` the newest is the last.
        collect_stats: statistics of this training step's collection; None before it, and offline.
        result: the outcome of this training step's update; None before it, and where none was due.
    """

    def __init__(self, algorithm: Algorithm, params: Any, state: Any, log: Any) -> None:
        self.algorithm, self.params, self._state, self._log = algorithm, params, state, log
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
    def score(self) -> float | None:
        """The score of the last test step; None before one."""
        score: float | None = self._state.score
        return score

    @property
    def epoch(self) -> int:
        """The epochs that have begun."""
        return int(self._state.counters.epoch)

    @property
    def env_step(self) -> int:
        """The env steps of training; 0 offline."""
        return int(self._state.counters.env_step)

    @property
    def update_step(self) -> int:
        """The update steps that are done."""
        return int(self._state.counters.update_step)

    @property
    def gradient_step(self) -> int:
        """The gradient steps that are done, those of the update step under way too."""
        return int(self._state.counters.gradient_step) + self._num_steps_within

    @property
    def training_step(self) -> int:
        """The training steps that have begun."""
        return int(self._state.training_step)

    def count(self, unit: Unit) -> float:
        """Return how many of a unit are done; of seconds what the clock says, of epochs those with all their steps."""
        return self._counts()[unit]

    def crossed(self, every: Every) -> bool:
        """Return whether an interval has become due.

        At the points inside an update that is in this gradient step, at `test_log` in this epoch, and elsewhere in this
        training step.
        """
        if not isinstance(every, Every) or (every.unit == "env_step" and self._log.unit != every.unit):
            rule = "must be an Every, in what the trainer counts"
            raise ParamsError(field_error_text("TrainerContext.crossed", "every", rule, every))
        since, clock = self._here
        return every.crossed(since[every.unit], clock if every.unit == "second" else self.count(every.unit))

    def request_stop(self, reason: str) -> None:
        """End the run after this training step and a last test step, with the stop reason `hook: <reason>`."""
        if self._state.stop_request is None:
            self._state.stop_request = f"hook: {reason}"

    def log(self, values: Mapping[str, Any]) -> None:
        """Take numbers into the means of the next row of the log, as a log point's mapping is."""
        if not are_numbers(values):
            rule = "must be a mapping from names to numbers"
            raise TypeError(field_error_text("TrainerContext.log", "values", rule, values))
        self._log.take_in("training", lent(dict(values)), {})

    def _begin_training_step(self) -> None:
        """Forget the last one, and look at intervals from here on."""
        self.result = self.collect_stats = None
        self._is_epochs_end = False
        self._step_began = self._here = self._look("training_step")

    def _end_update(self, result: UpdateResult | None, is_epochs_end: bool) -> None:
        """Note the outcome of an update step, whose gradient steps the run has counted by now."""
        self.result = result
        self._num_steps_within, self._here, self._is_epochs_end = 0, self._step_began, is_epochs_end
        self._num_open_steps = 0

    def _begin_gradient_step(self) -> None:
        """Forget the losses of the one before, and count it if its end was not notified, as of a skipped step."""
        self.losses.clear()
        self._num_steps_within += self._num_open_steps
        self._num_open_steps = 1
        self._here = self._look("gradient_step")

    def _end_gradient_step(self, result: UpdateResult) -> None:
        """Count it."""
        self._num_steps_within += result.num_gradient_steps
        self._num_open_steps = 0

    @contextmanager
    def _in_test_step(self) -> Iterator[None]:
        """Look at intervals since the epoch of this test step began, of seconds since the last one."""
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
            self._here = here  # one in training is within a training step

    def _look(self, place: str) -> tuple[dict[Unit, float], float]:
        """Return the counts of now, for seconds the clock at the last look from this place; and the clock."""
        since = self._counts()
        clock, since["second"] = since["second"], self._looked_at[place]
        self._looked_at[place] = clock
        return since, clock

    def _counts(self) -> dict[Unit, float]:
        """Return the count of each unit; taken in every training step, so without a call of ours for each."""
        counters = self._state.counters
        return {
            "env_step": counters.env_step,
            "update_step": counters.update_step,
            "gradient_step": counters.gradient_step + self._num_steps_within,
            "training_step": self._state.training_step,
            "epoch": counters.epoch - (not self._is_epochs_end),
            "second": time.monotonic(),
        }
