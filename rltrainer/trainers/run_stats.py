"""The report of a run: one `EpochStats` per epoch, and `InfoStats` at its end."""

import dataclasses
import math
from dataclasses import dataclass, field

from rltrainer.collect import CollectStats
from rltrainer.loggers.log_state import Progress
from rltrainer.types import UpdateResult
from rltrainer.validation.field_rules import NonNegativeFloat, NonNegativeInt, PositiveInt


@dataclass
class Timing:
    """Seconds spent in each part of the work."""

    total: NonNegativeFloat = 0.0
    collect: NonNegativeFloat = 0.0
    update: NonNegativeFloat = 0.0
    test: NonNegativeFloat = 0.0

    def add(self, other: "Timing") -> None:
        """Add another's seconds to these."""
        for entry in dataclasses.fields(self):
            setattr(self, entry.name, getattr(self, entry.name) + getattr(other, entry.name))


@dataclass(repr=False)
class EpochStats:
    """One epoch.

    Args:
        epoch: its number, from 1.
        collect_stats: all collection steps of the epoch merged; None offline.
        test_stats: its test step; None without a test collector.
        update: metrics as floats, means over all gradient steps of the epoch.
        timing: seconds.
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
        """Return it by the names that a log and `InfoStats` have for it."""
        return {f"best_{name.strip('_')}": value for name, value in vars(self).items()}

    @classmethod
    def of_progress(cls, progress: Progress) -> "Best":
        """Read it from a log."""
        score, return_, return_std, epoch = (progress.get(name) for name in cls().to_progress())
        return cls(score, return_, return_std, None if epoch is None else int(epoch))

    def problem(self) -> str | None:
        """Return what is wrong with a best that was read from a file, or None."""
        return "score: NaN is never the best" if self.score is not None and math.isnan(self.score) else None


@dataclass(repr=False)
class InfoStats:
    """A whole run.

    Args:
        epoch, env_step, update_step, gradient_step: the counters at its end.
        best_score: highest score of a test step, None if there is none.
        best_return, best_return_std: mean and standard deviation of that test step's returns.
        best_epoch: the epoch of that test step; 0 is the initial one.
        stop_reason: `"max_epochs"`, `"stop_fn"`, or what else ended the run.
        timing: seconds.
        epochs: one entry per epoch.
        skipped_steps: steps of optimizers that were left out, as `UpdateParams.nonfinite` says.
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
        counts = ", ".join(
            f"{getattr(self, name):,} {name.replace('_', ' ')}s"
            for name in ("env_step", "update_step", "gradient_step")
        )
        best = "no score"
        if self.best_score is not None:
            best = f"best score {self.best_score:.6g} in epoch {self.best_epoch}"
            if self.best_return is not None and self.best_return_std is not None:
                best += f" (return {self.best_return:.4g} +- {self.best_return_std:.3g})"
        seconds = ", ".join(f"{name} {value:.3g} s" for name, value in vars(self.timing).items())
        return (
            f"InfoStats(epoch {self.epoch}, ended by {self.stop_reason}\n"
            f"  {best}\n  {counts}\n  time: {seconds}\n  epochs: a list of {len(self.epochs)} EpochStats)"
        )
