"""The epoch that is under way: what its training steps have gathered so far."""

from dataclasses import dataclass, field
from typing import Self

from rltrainer.collect import CollectStats
from rltrainer.trainers.stats import EpochStats, Timing, update_to_state
from rltrainer.types import State, UpdateResult

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

    epoch: int
    num_env_steps: int = 0
    num_training_steps: int = 0
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
            update=UpdateResult(**update_to_state(UpdateResult.mean(self.updates))),
            timing=self.timing,
        )

    def to_state(self) -> State:
        """Return the record as tensors and plain values; a test step under way is not kept, it is made again."""
        return {
            "epoch": self.epoch,
            "num_env_steps": self.num_env_steps,
            "num_training_steps": self.num_training_steps,
            "timing": vars(self.timing),
            "collected": [stats.to_state() for stats in self.collected],
            # Tensors stay tensors: a mean that goes on after a resume must be the same to the last bit.
            "updates": [{**update_to_state(update), "metrics": dict(update.metrics)} for update in self.updates],
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        """Rebuild a record from `to_state`."""
        parts = {
            "timing": Timing(**state["timing"]),
            "collected": [CollectStats.from_state(entry) for entry in state["collected"]],
            "updates": [UpdateResult(**entry) for entry in state["updates"]],
        }
        return cls(**(state | parts))
