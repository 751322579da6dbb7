"""The epoch that is under way: what its training steps have gathered so far."""

from dataclasses import dataclass, field, replace

from rltrainer.collect import CollectStats
from rltrainer.field_rules import NonNegativeInt, PositiveInt
from rltrainer.trainers.run_stats import EpochStats, Timing, update_in_floats
from rltrainer.types import UpdateResult

MERGE_AT = 256
"""Parts are merged when there are this many, so that an epoch of a million short collections stays small."""


@dataclass
class EpochRecord:
    """What one epoch gathers; part of a checkpoint, so that a run can stop in the middle of an epoch.

    Args:
        epoch: its number.
        num_env_steps: env steps collected so far.
        num_training_steps: training steps made so far.
        score: score of its test step, None before.
    """

    epoch: PositiveInt
    num_env_steps: NonNegativeInt = 0
    num_training_steps: NonNegativeInt = 0
    score: float | None = None
    test_stats: CollectStats | None = None
    timing: Timing = field(default_factory=Timing)
    collected: list[CollectStats] = field(default_factory=list)
    updates: list[UpdateResult] = field(default_factory=list)

    def add_collection(self, stats: CollectStats) -> None:
        """Note a collection step."""
        self.num_env_steps += stats.num_env_steps
        self.timing.collect += stats.collect_time
        self.collected.append(stats)
        if len(self.collected) >= MERGE_AT:
            self.collected = [CollectStats.merge(self.collected)]

    def add_update(self, result: UpdateResult, seconds: float) -> None:
        """Note an update step; its td errors are not kept."""
        self.timing.update += seconds
        self.updates.append(UpdateResult(result.metrics, result.num_gradient_steps, counts=result.counts))
        if len(self.updates) >= MERGE_AT:
            self.updates = [UpdateResult.mean(self.updates)]

    def stats(self) -> EpochStats:
        """Return the epoch's statistics."""
        return EpochStats(
            epoch=self.epoch,
            collect_stats=CollectStats.merge(self.collected) if self.collected else None,
            test_stats=self.test_stats,
            update=update_in_floats(UpdateResult.mean(self.updates)),
            timing=self.timing,
        )

    def without_test(self) -> "EpochRecord":
        """Return what a checkpoint keeps: a test step under way is made again."""
        return replace(self, score=None, test_stats=None)

    def problem(self) -> str | None:
        """Return what is wrong with a record that was read from a file, or None."""
        if all(update.num_gradient_steps > 0 or not update.metrics for update in self.updates):
            return None
        return "updates: expected gradient steps in each that measured something, found one without"
