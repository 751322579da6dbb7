"""The report of a collection: counts, and the returns and lengths of the episodes that ended in it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from rltrainer.data.storage import Array
from rltrainer.errors import ParamsError
from rltrainer.validation.field_rules import NonNegativeFloat, NonNegativeInt


@dataclass(frozen=True)
class SequenceSummaryStats:
    """Summary of a sequence of numbers; `std` is the population's."""

    mean: float
    std: float
    max: float
    min: float

    @classmethod
    def of(cls, values: Array) -> Self | None:
        """Summarise an array of any shape; None if it is empty."""
        if values.size == 0:
            return None
        return cls(float(values.mean()), float(values.std()), float(values.max()), float(values.min()))


@dataclass(frozen=True, repr=False)
class CollectStats:
    """Statistics of one collection, or of several merged.

    Args:
        num_collected_steps: transitions; env steps are more where an env spends one on its reset.
        returns: undiscounted sums of raw rewards [E], or [E, A] for A agents, in the order in which episodes ended.
        lengths: steps of those episodes [E].
        collect_time: seconds.
        infos: numbers that the envs reported at the end of those episodes, by key [E] float64, NaN where an info lacks
            it; see `Collector(info_keys=)`.
    """

    num_collected_steps: NonNegativeInt
    num_env_steps: NonNegativeInt
    returns: Array
    lengths: Array
    collect_time: NonNegativeFloat
    infos: dict[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"CollectStats({self.summary()})"

    def summary(self) -> str:
        """Return counts, and mean and standard deviation of returns and lengths, as text."""
        parts = [f"{self.num_env_steps:,} env steps", f"{self.num_collected_episodes:,} episodes"]
        for name, stat in (("return", self.returns_stat), ("length", self.lengths_stat)):
            parts += [] if stat is None else [f"{name} {stat.mean:.4g} +- {stat.std:.3g}"]
        parts += [f"{name} {mean:.4g}" for name, mean in self.info_means.items()]
        return ", ".join([*parts, f"{self.collect_time:.3g} s"])

    @property
    def num_collected_episodes(self) -> int:
        """The number of episodes that ended."""
        return len(self.lengths)

    @property
    def returns_stat(self) -> SequenceSummaryStats | None:
        """Summary of the returns; None without an episode."""
        return SequenceSummaryStats.of(self.returns)

    @property
    def lengths_stat(self) -> SequenceSummaryStats | None:
        """Summary of the lengths; None without an episode."""
        return SequenceSummaryStats.of(self.lengths)

    @property
    def info_means(self) -> dict[str, float]:
        """Means of `infos` over the episodes that had them; a key that none had is left out."""
        present = {name: values[~np.isnan(values)] for name, values in self.infos.items()}
        return {name: float(values.mean()) for name, values in present.items() if len(values)}

    @property
    def success_rate(self) -> float | None:
        """The mean of `is_success`, or else of `success`; None if no info had one."""
        return self.info_means.get("is_success", self.info_means.get("success"))

    @property
    def collect_speed(self) -> float:
        """Env steps per second."""
        return self.num_env_steps / self.collect_time if self.collect_time > 0 else 0.0

    @classmethod
    def merge(cls, parts: "list[CollectStats]") -> "CollectStats":
        """Join collections that followed one another."""
        with_episodes = [part for part in parts if part.num_collected_episodes] or parts
        names = dict.fromkeys(name for part in with_episodes for name in part.infos)
        infos = {  # a collection that asked for other keys has NaN
            name: np.concatenate([part.infos.get(name, np.full(len(part.lengths), np.nan)) for part in with_episodes])
            for name in names
        }
        return cls(
            num_collected_steps=sum(part.num_collected_steps for part in parts),
            num_env_steps=sum(part.num_env_steps for part in parts),
            returns=np.concatenate([part.returns for part in with_episodes]),
            lengths=np.concatenate([part.lengths for part in with_episodes]),
            collect_time=sum(part.collect_time for part in parts),
            infos=infos,
        )

    def reduce_agents(self, reduction: Callable[[Array], Array] | None) -> "CollectStats":
        """Return the stats with one return per episode, reduced from [E, A] to [E] where there are several agents.

        A `ParamsError` if there are and `reduction` is None, or it returns another shape.
        """
        if self.returns.ndim == 1:
            return self
        field = "TrainerParams.multi_agent_return_reduction"
        if reduction is None:
            num_agents = self.returns.shape[1]
            raise ParamsError(f"{field}: must be given for envs with {num_agents} agents; got None (NoneType)")
        reduced = np.asarray(reduction(self.returns.copy()))
        if reduced.shape != self.lengths.shape:
            raise ParamsError(f"{field}: must return shape {self.lengths.shape}; got shape {reduced.shape}")
        return replace(self, returns=reduced)

    def problem(self) -> str | None:
        """Return the fault of stats from a file, or None."""
        is_sound = self.returns.dtype.kind in "fiu" and self.lengths.dtype == np.int64 and self.lengths.ndim == 1
        for name, values in self.infos.items():
            if values.dtype != np.float64 or values.shape != self.lengths.shape:
                return f"infos.{name}: expected float64 {self.lengths.shape}, found {values.dtype} {values.shape}"
        if is_sound and self.returns.ndim in (1, 2) and len(self.returns) == len(self.lengths):
            return None if (self.lengths >= 0).all() else "lengths: is negative"
        found = f"{self.returns.dtype} {self.returns.shape} and {self.lengths.dtype} {self.lengths.shape}"
        return f"expected returns and lengths of as many episodes, found {found}"


NO_EPISODES = CollectStats(0, 0, np.zeros(0), np.zeros(0, np.int64), 0.0)
