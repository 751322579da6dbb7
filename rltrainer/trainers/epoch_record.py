"""The epoch that is under way, and the last episodes of training: what training steps have gathered so far."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rltrainer.collect import CollectStats
from rltrainer.functional.means import gather
from rltrainer.trainers.run_stats import EpochStats, Timing
from rltrainer.types import UpdateResult
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt

NUM_EPISODES = 100
"""Returns, lengths and infos of training are means over so many episodes, the last ones."""


@dataclass
class LastEpisodes:
    """Returns and lengths of the last episodes of training; of infos, the last that were told."""

    returns: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)
    infos: dict[str, list[float]] = field(default_factory=dict)

    def add(self, stats: CollectStats) -> None:
        """Add those of a collection; of all, the last `NUM_EPISODES` are kept."""
        self.returns = [*self.returns, *stats.returns.tolist()][-NUM_EPISODES:]
        self.lengths = [*self.lengths, *stats.lengths.tolist()][-NUM_EPISODES:]
        for name, values in stats.infos.items():
            told = values[~np.isnan(values)].tolist()
            self.infos[name] = [*self.infos.get(name, ()), *told][-NUM_EPISODES:]

    def means(self) -> dict[str, float]:
        """Return the mean return, length and infos; nothing before the first episode has ended."""
        named = {"return": self.returns, "length": self.lengths, **self.infos}
        return {name: sum(values) / len(values) for name, values in named.items() if values}

    def problem(self) -> str | None:
        """Return what is wrong with episodes that were read from a file, or None."""
        if any(len(values) > NUM_EPISODES for values in self.infos.values()):
            return f"expected at most {NUM_EPISODES} values of each info"
        num_returns, num_lengths = len(self.returns), len(self.lengths)
        if num_returns == num_lengths <= NUM_EPISODES:
            return None
        return f"expected as many returns as lengths, found {num_returns} and {num_lengths}"


@dataclass
class EpochRecord:
    """Gatherings of one epoch so far; part of a checkpoint, so that a run can stop in the middle of an epoch."""

    epoch: PositiveInt
    num_env_steps: NonNegativeInt = 0
    num_training_steps: NonNegativeInt = 0
    num_update_steps: NonNegativeInt = 0
    score: float | None = None
    test_stats: CollectStats | None = None
    timing: Timing = field(default_factory=Timing)
    collected: list[CollectStats] = field(default_factory=list)
    updates: list[UpdateResult] = field(default_factory=list)

    def num_steps(self, unit: Literal["env_step", "gradient_step"]) -> int:
        """Return how much of the epoch is done, in what its trainer counts: env steps, offline training steps."""
        return self.num_env_steps if unit == "env_step" else self.num_training_steps

    def add_collection(self, stats: CollectStats) -> None:
        """Note a collection step."""
        self.num_env_steps += stats.num_env_steps
        self.timing.collect += stats.collect_time
        gather(self.collected, stats, CollectStats.merge)

    def add_update(self, result: UpdateResult, seconds: float) -> None:
        """Note an update step; its td errors are not kept."""
        self.timing.update += seconds
        self.num_update_steps += 1
        kept = UpdateResult(result.metrics, result.num_gradient_steps, counts=result.counts)
        gather(self.updates, kept, UpdateResult.mean)

    def stats(self) -> EpochStats:
        """Return the epoch's statistics."""
        update = UpdateResult.mean(self.updates)
        return EpochStats(
            epoch=self.epoch,
            collect_stats=CollectStats.merge(self.collected) if self.collected else None,
            test_stats=self.test_stats,
            update=UpdateResult({**update.floats()}, update.num_gradient_steps, counts=dict(update.counts)),
            timing=self.timing,
        )

    def problem(self) -> str | None:
        """Return what is wrong with a record that was read from a file, or None."""
        if any(stats.returns.ndim != 1 for stats in self.collected):
            return "collected: expected one return for each episode"
        if all(update.num_gradient_steps > 0 or not update.metrics for update in self.updates):
            return None
        return "updates: expected gradient steps in each that measured something, found one without"
