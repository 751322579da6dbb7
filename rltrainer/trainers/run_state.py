"""The state of a run beside the states of its parts, and the statistics that are made of it."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np

from rltrainer.collect import CollectStats
from rltrainer.errors import readable
from rltrainer.functional.means import gather
from rltrainer.loggers.log_state import Progress
from rltrainer.plan import RuntimeParams
from rltrainer.state.codec import to_state
from rltrainer.state.global_random import GlobalRandom
from rltrainer.types import State, UpdateResult
from rltrainer.validation.field_rules import NonNegativeFloat, NonNegativeInt, PositiveInt

# The stop reason of a run that a signal ended: it continues when it is restored.
SIGNAL = "signal"
# Logged returns, lengths and infos of training are means over this many of the last episodes.
NUM_EPISODES = 100
StepUnit = Literal["env_step", "gradient_step"]


@dataclass
class Timing:
    """Seconds spent in each part of the work."""

    total: NonNegativeFloat = 0.0
    collect: NonNegativeFloat = 0.0
    update: NonNegativeFloat = 0.0
    test: NonNegativeFloat = 0.0

    def add(self, other: "Timing") -> None:
        """Add another's seconds to these."""
        for name, seconds in vars(other).items():
            setattr(self, name, getattr(self, name) + seconds)


@dataclass(repr=False)
class EpochStats:
    """Statistics of one epoch.

    Args:
        epoch: its number, from 1.
        collect_stats: all collection steps merged; None offline.
        test_stats: None without a test collector.
        update: metrics as floats, means over all gradient steps of the epoch.
    """

    epoch: PositiveInt
    collect_stats: CollectStats | None
    test_stats: CollectStats | None
    update: UpdateResult
    timing: Timing

    def __repr__(self) -> str:
        parts = [f"EpochStats(epoch {self.epoch} in {self.timing.total:.3g} s"]
        parts += [] if self.collect_stats is None else [f"collected {self.collect_stats.summary()}"]
        parts += [] if self.test_stats is None else [f"tested {self.test_stats.summary()}"]
        metrics = ", ".join(f"{name} {float(value):.4g}" for name, value in self.update.metrics.items())
        parts += [f"updated {self.update.num_gradient_steps:,} gradient steps: {metrics}"] if metrics else []
        return "; ".join(parts) + ")"


@dataclass(repr=False)
class InfoStats:
    """Statistics of a whole run.

    Args:
        epoch, env_step, update_step, gradient_step: the counters at its end.
        best_score: highest score of a test step, None if there is none.
        best_return, best_return_std: mean and standard deviation of that test step's returns.
        best_epoch: the epoch of that test step; 0 is the initial one.
        stop_reason: `"max_epochs"`, `"stop_fn"`, or another reason that ended the run.
        skipped_steps: optimizer steps that were left out, as `UpdateParams.nonfinite` says.
    """

    epoch: int
    env_step: int
    update_step: int
    gradient_step: int
    best_score: float | None
    best_return: float | None
    best_return_std: float | None
    best_epoch: int | None
    stop_reason: str | None
    timing: Timing
    epochs: list[EpochStats] = field(default_factory=list)
    skipped_steps: int = 0

    def __repr__(self) -> str:
        counts = (
            f"{self.env_step:,} env steps, {self.update_step:,} update steps, {self.gradient_step:,} gradient steps"
        )
        best = "no score"
        if self.best_score is not None:
            best = f"best score {self.best_score:.6g} in epoch {self.best_epoch}"
            if self.best_return is not None and self.best_return_std is not None:
                best += f" (return {self.best_return:.4g} +- {self.best_return_std:.3g})"
        seconds = ", ".join(f"{name} {value:.3g} s" for name, value in vars(self.timing).items())
        lines = f"InfoStats(epoch {self.epoch}, ended by {self.stop_reason}", best, counts, f"time: {seconds}"
        return "\n  ".join([*lines, f"epochs: a list of {len(self.epochs)} EpochStats)"])


@dataclass
class Counters:
    """Counts of a run's progress."""

    epoch: NonNegativeInt = 0
    env_step: NonNegativeInt = 0
    update_step: NonNegativeInt = 0
    gradient_step: NonNegativeInt = 0


@dataclass
class Best:
    """The best test step so far; all None until there is one."""

    score: float | None = None
    return_: float | None = None
    return_std: float | None = None
    epoch: NonNegativeInt | None = None

    def is_beaten_by(self, score: float) -> bool:
        """Return whether a score is strictly better; NaN never is."""
        return not math.isnan(score) and (self.score is None or score > self.score)

    def to_progress(self) -> Progress:
        """Return it by the names of a log and of `InfoStats`."""
        return {f"best_{name.strip('_')}": value for name, value in vars(self).items()}

    def problem(self) -> str | None:
        """Return the fault of a best from a file, or None."""
        return "score: NaN is never the best" if self.score is not None and math.isnan(self.score) else None


@dataclass
class LastEpisodes:
    """Returns, lengths and infos of the last `NUM_EPISODES` episodes of training."""

    returns: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    infos: dict[str, list[float]] = field(default_factory=dict)

    def add(self, stats: CollectStats) -> None:
        """Add the episodes of a collection."""
        self.returns = [*self.returns, *stats.returns.tolist()][-NUM_EPISODES:]
        self.lengths = [*self.lengths, *stats.lengths.tolist()][-NUM_EPISODES:]
        for name, values in stats.infos.items():
            present = values[~np.isnan(values)].tolist()
            self.infos[name] = [*self.infos.get(name, ()), *present][-NUM_EPISODES:]

    def means(self) -> dict[str, float]:
        """Return the mean return, length and infos; nothing before the first episode has ended."""
        named = {"return": self.returns, "length": self.lengths, **self.infos}
        return {name: sum(values) / len(values) for name, values in named.items() if values}

    def problem(self) -> str | None:
        """Return the fault of episodes from a file, or None."""
        if any(len(values) > NUM_EPISODES for values in self.infos.values()):
            return f"expected at most {NUM_EPISODES} values of each info"
        if len(self.returns) == len(self.lengths) <= NUM_EPISODES:
            return None
        return f"expected as many returns as lengths, found {len(self.returns)} and {len(self.lengths)}"


@dataclass
class EpochRecord:
    """The data of the epoch under way; part of a checkpoint, so that a run can stop in the middle of an epoch."""

    epoch: PositiveInt
    num_env_steps: NonNegativeInt = 0
    num_training_steps: NonNegativeInt = 0
    num_update_steps: NonNegativeInt = 0
    score: float | None = None
    test_stats: CollectStats | None = None
    timing: Timing = field(default_factory=Timing)
    collected: list[CollectStats] = field(default_factory=list)
    updates: list[UpdateResult] = field(default_factory=list)

    def num_steps(self, unit: StepUnit) -> int:
        """Return how many steps of the epoch are done: env steps, offline training steps."""
        return self.num_env_steps if unit == "env_step" else self.num_training_steps

    def problem(self) -> str | None:
        """Return the fault of a record from a file, or None."""
        if any(stats.returns.ndim != 1 for stats in self.collected):
            return "collected: expected one return for each episode"
        if any(update.metrics and not update.num_gradient_steps for update in self.updates):
            return "updates: expected gradient steps in each that measured something, found one without"
        return None


# Fields of a `RunState` that no file holds: where it stands follows from the counters.
OF_THIS_PROCESS = ("phase", "share_done")


@dataclass(kw_only=True)
class RunState:
    """State of a run beside its parts: the loop counts in it, logs and results are made of it, checkpoints hold it."""

    params: dict[str, Any]
    """Settings of the run; filled in when it is saved."""
    counters: Counters
    best: Best
    stop_reason: str | None
    runtime: RuntimeParams
    """The run's `RuntimeParams`, with a value for each "auto"."""
    timing: Timing
    epochs: list[EpochStats]
    """The epochs that are done; `timing` is their sum."""
    record: EpochRecord | None
    """The epoch under way."""
    log: LastEpisodes = field(default_factory=LastEpisodes)
    score: float | None = None
    """The score of the last test step."""
    training_step: NonNegativeInt = 0
    """The training steps that have started."""
    stop_request: str | None = None
    """The stop reason of a hook that has asked for the end."""
    global_random: GlobalRandom | None = None
    """Filled in when it is saved; only a run that `CheckpointParams.resume` continues takes it up."""
    phase: Literal["new", "restored", "begun"] = "new"
    """Before its first step; taken from a checkpoint or log, so that `run` continues it; or training."""
    share_done: float = 0.0
    """Progress in [0, 1] at the end of the last training step, which schedules read in the next one."""

    @classmethod
    def new(cls, runtime: RuntimeParams, **own: Any) -> Self:
        """Return the state of a new run; `own` are the fields that a subclass adds."""
        # No default of a field says this: a file that lacks one of these is damaged.
        return cls(
            params={}, counters=Counters(), best=Best(), stop_reason=None, runtime=runtime, timing=Timing(), epochs=[],
            record=None, **own,
        )  # fmt: skip

    @property
    def has_begun(self) -> bool:
        """Return whether a first epoch has started; before that a run continues by starting again."""
        return self.counters.epoch > 0

    @property
    def stop_cause(self) -> str | None:
        """The stop reason, also where a hook has asked for the end and the last test step is to come."""
        return self.stop_reason or self.stop_request

    def to_state(self) -> State:
        """Return the part of it that a checkpoint holds."""
        return {name: value for name, value in to_state(self).items() if name not in OF_THIS_PROCESS}

    def num_epochs_and_steps(self, unit: StepUnit) -> tuple[int, int]:
        """Return how many epochs are done, and steps of the one under way."""
        epoch = self.counters.epoch
        return (epoch, 0) if self.record is None else (epoch - 1, self.record.num_steps(unit))

    def begin_epoch(self) -> EpochRecord:
        """Return the record of a new epoch, or of the one under way."""
        if self.record is None:
            self.stop_reason = self.stop_request = None  # an epoch by hand, after the end
            self.counters.epoch += 1
            self.record = EpochRecord(self.counters.epoch)
        return self.record

    def add_collection(self, stats: CollectStats, record: EpochRecord) -> None:
        """Count a collection step."""
        self.counters.env_step += stats.num_env_steps
        record.num_env_steps += stats.num_env_steps
        record.timing.collect += stats.collect_time
        gather(record.collected, stats, CollectStats.merge)

    def add_update(self, result: UpdateResult, record: EpochRecord, seconds: float) -> None:
        """Count an update step, and keep its numbers without the td errors."""
        self.counters.update_step += 1
        self.counters.gradient_step += result.num_gradient_steps
        record.num_update_steps += 1
        record.timing.update += seconds
        kept = UpdateResult(result.metrics, result.num_gradient_steps, counts=result.counts)
        gather(record.updates, kept, UpdateResult.mean)

    def end_epoch(self, record: EpochRecord) -> EpochStats:
        """Return the statistics of the epoch that was under way."""
        mean = UpdateResult.mean(record.updates)
        update = UpdateResult({**mean.floats()}, mean.num_gradient_steps, counts=dict(mean.counts))
        collected = CollectStats.merge(record.collected) if record.collected else None
        stats = EpochStats(record.epoch, collected, record.test_stats, update, record.timing)
        self.epochs.append(stats)
        self.timing.add(stats.timing)
        self.record = None
        return stats

    def is_finished(self, max_epochs: int) -> bool:
        """Return whether the run is over; one that had reached its last epoch continues if there are more now."""
        if self.stop_reason in (None, "max_epochs"):
            is_last = self.counters.epoch >= max_epochs and self.record is None
            self.stop_reason = "max_epochs" if is_last else None
        return self.stop_reason is not None

    def info(self, skipped_steps: int) -> InfoStats:
        """Return the statistics of the run."""
        numbers: dict[str, Any] = vars(self.counters) | self.best.to_progress()
        return InfoStats(
            **numbers, stop_reason=self.stop_reason, timing=self.timing, epochs=self.epochs, skipped_steps=skipped_steps
        )

    def to_progress(self) -> Progress:
        """Return counters and best by the names of a log."""
        return vars(self.counters) | self.best.to_progress() | {"is_stopped": int(self.stop_reason == "stop_fn")}

    def take_progress(self, progress: Progress) -> None:
        """Continue from the counters and the best of a log."""
        self.counters = Counters(**{name: int(progress[name] or 0) for name in vars(self.counters)})
        score, return_, return_std, epoch = (progress.get(name) for name in Best().to_progress())
        self.best = Best(score, return_, return_std, None if epoch is None else int(epoch))
        self.stop_reason = "stop_fn" if progress["is_stopped"] else None

    def problem(self) -> str | None:
        """Return the fault of a state from a file, or None."""
        epoch = self.counters.epoch
        if self.record is not None and self.record.epoch != epoch:
            return f"record.epoch: expected {epoch}, as counters.epoch, found {self.record.epoch}"
        if (self.best.epoch or 0) > epoch:
            return f"best.epoch: expected one up to {epoch}, found {self.best.epoch}"
        last, found = epoch - (self.record is not None), [stats.epoch for stats in self.epochs]
        if found != list(range(last + 1 - len(found), last + 1)):
            return f"epochs: expected those up to {last}, found {readable(found)}"
        return None
