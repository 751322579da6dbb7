"""The state of a run beside that of its parts."""

import dataclasses
from typing import Any, Literal, Self

from rltrainer.errors import readable
from rltrainer.loggers.log_state import Progress
from rltrainer.plan import RuntimeParams
from rltrainer.state.global_random import GlobalRandom
from rltrainer.trainers.epoch_record import EpochRecord, LastEpisodes
from rltrainer.trainers.run_stats import Best, EpochStats, InfoStats, Timing
from rltrainer.types import UpdateResult
from rltrainer.validation.field_rules import NonNegativeInt

SIGNAL = "signal"
"""The stop reason of a run that a signal ended: it goes on when it is restored."""


@dataclasses.dataclass
class Counters:
    """Counts of a run's progress."""

    epoch: NonNegativeInt = 0
    env_step: NonNegativeInt = 0
    update_step: NonNegativeInt = 0
    gradient_step: NonNegativeInt = 0


@dataclasses.dataclass(kw_only=True)
class RunState:
    """All that a run remembers beside its parts: the loop counts in it, logs tell of it, checkpoints hold it."""

    params: dict[str, Any]
    """Settings of the run; filled in when it is saved."""
    counters: Counters
    best: Best
    stop_reason: str | None
    runtime: RuntimeParams
    """Values that the run's `RuntimeParams` came to."""
    timing: Timing
    epochs: list[EpochStats]
    """The epochs that are done, as `timing` is of them."""
    record: EpochRecord | None
    """The epoch that is under way."""
    log: LastEpisodes = dataclasses.field(default_factory=LastEpisodes)
    score: float | None = None
    """The score of the last test step."""
    training_step: NonNegativeInt = 0
    """The training steps that have begun."""
    stop_request: str | None = None
    """The stop reason of a hook that has asked for the end."""
    global_random: GlobalRandom | None = None
    """Filled in when it is saved; only a run that `CheckpointParams.resume` goes on with takes it up."""

    @classmethod
    def new(cls, runtime: RuntimeParams, **own: Any) -> Self:
        """Return the state of a run that begins; `own` are the fields that a subclass adds."""
        return cls(
            params={}, counters=Counters(), best=Best(), stop_reason=None, runtime=runtime, timing=Timing(), epochs=[],
            record=None, **own,
        )  # fmt: skip

    @property
    def has_begun(self) -> bool:
        """Return whether a first epoch has; up to the initial test step a run continues by beginning."""
        return self.counters.epoch > 0

    @property
    def stop_cause(self) -> str | None:
        """The stop reason, also where a hook has asked for the end and the last test step is to come."""
        return self.stop_reason or self.stop_request

    def num_epochs_and_steps(self, unit: Literal["env_step", "gradient_step"]) -> tuple[int, int]:
        """Return how many epochs are done, and steps of the one that is under way, in what its trainer counts."""
        epoch = self.counters.epoch
        return (epoch, 0) if self.record is None else (epoch - 1, self.record.num_steps(unit))

    def begin_epoch(self) -> EpochRecord:
        """Return the record of a new epoch, or of the one that is under way."""
        if self.record is None:
            self.stop_reason = self.stop_request = None  # an epoch by hand, after the end
            self.counters.epoch += 1
            self.record = EpochRecord(self.counters.epoch)
        return self.record

    def add_update(self, result: UpdateResult, record: EpochRecord, seconds: float) -> None:
        """Count an update step."""
        self.counters.update_step += 1
        self.counters.gradient_step += result.num_gradient_steps
        record.add_update(result, seconds)

    def end_epoch(self, record: EpochRecord) -> EpochStats:
        """Return the statistics of the epoch that was under way."""
        stats = record.stats()
        self.epochs.append(stats)
        self.timing.add(stats.timing)
        self.record = None
        return stats

    def is_finished(self, max_epochs: int) -> bool:
        """Return whether the run is over; one that had reached its last epoch goes on if there are more now."""
        if self.stop_reason in (None, "max_epochs"):
            is_last = self.counters.epoch >= max_epochs and self.record is None
            self.stop_reason = "max_epochs" if is_last else None
        return self.stop_reason is not None

    def info(self, skipped_steps: int) -> InfoStats:
        """Return the statistics of the run, given what its algorithm has counted."""
        numbers: dict[str, Any] = vars(self.counters) | self.best.to_progress()
        return InfoStats(
            **numbers, stop_reason=self.stop_reason, timing=self.timing, epochs=self.epochs, skipped_steps=skipped_steps
        )

    def to_progress(self) -> Progress:
        """Return how far it has come, by the names of a log."""
        return vars(self.counters) | self.best.to_progress() | {"is_stopped": int(self.stop_reason == "stop_fn")}

    def take_progress(self, progress: Progress) -> None:
        """Go on from how far a log says a run has come."""
        self.counters = Counters(**{name: int(progress[name] or 0) for name in vars(self.counters)})
        self.best = Best.of_progress(progress)
        self.stop_reason = "stop_fn" if progress["is_stopped"] else None

    def problem(self) -> str | None:
        """Return what is wrong with a state that was read from a file, or None."""
        epoch = self.counters.epoch
        if self.record is not None and self.record.epoch != epoch:
            return f"record.epoch: expected {epoch}, as counters.epoch, found {self.record.epoch}"
        if (self.best.epoch or 0) > epoch:
            return f"best.epoch: expected one up to {epoch}, found {self.best.epoch}"
        last, found = epoch - (self.record is not None), [stats.epoch for stats in self.epochs]
        if found != list(range(last + 1 - len(found), last + 1)):
            return f"epochs: expected those up to {last}, found {readable(found)}"
        return None
