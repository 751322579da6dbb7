"""What a run reports: one `EpochStats` per epoch, and `InfoStats` at its end."""

import dataclasses
from dataclasses import dataclass, field
from typing import Self

from rltrainer.collect import CollectStats
from rltrainer.types import State, UpdateResult


@dataclass
class Timing:
    """Seconds spent in each part of the work."""

    total: float = 0.0
    collect: float = 0.0
    update: float = 0.0
    test: float = 0.0

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

    epoch: int
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

    def to_state(self) -> State:
        """Return the stats as tensors and plain values."""
        return {
            "epoch": self.epoch,
            "collect_stats": self.collect_stats.to_state() if self.collect_stats else None,
            "test_stats": self.test_stats.to_state() if self.test_stats else None,
            "update": update_to_state(self.update),
            "timing": vars(self.timing),
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Rebuild stats from `to_state`."""
        collect, test = state["collect_stats"], state["test_stats"]
        return cls(
            epoch=state["epoch"],
            collect_stats=CollectStats.from_state(collect) if collect else None,
            test_stats=CollectStats.from_state(test) if test else None,
            update=UpdateResult(**state["update"]),
            timing=Timing(**state["timing"]),
        )


@dataclass
class Best:
    """The best test step so far; all None until there is one."""

    score: float | None = None
    return_: float | None = None
    return_std: float | None = None
    epoch: int | None = None


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


def update_to_state(update: UpdateResult) -> State:
    """Return an update's numbers; td errors are of the moment and not kept."""
    counts = dict(update.counts)
    return {"metrics": update.floats(), "num_gradient_steps": update.num_gradient_steps, "counts": counts}
