"""The contents of a replay buffer, in numbers that a person looks at before training on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium as gym
import numpy as np

from rltrainer.data.action_coverage import ActionCoverage, action_coverage, extremes, listed, written
from rltrainer.data.ring import Ring
from rltrainer.data.storage import Array
from rltrainer.data.stored_episodes import stored_episodes
from rltrainer.errors import escaped
from rltrainer.tree import named_leaves
from rltrainer.validation.field_rules import Rule, checked, is_finite

ReferenceScores = Annotated[
    tuple[float, float],
    Rule(
        "two finite numbers, the lower one first",
        lambda v: isinstance(v, Sequence) and len(v) == 2 and all(map(is_finite, v)) and v[0] < v[1],
    ),
]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The spread of numbers."""

    mean: float
    std: float
    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float
    maximum: float

    @classmethod
    def of(cls, values: Array) -> "Quantiles | None":
        """Summarise numbers [E]; None if there are none."""
        if not len(values):
            return None
        return cls(float(values.mean()), float(values.std()), *np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist())


@dataclass(frozen=True, slots=True)
class ObservationRange:
    """One leaf of the observations.

    Attributes:
        name: its path, such as `["camera"]`; empty for the only leaf.
        size: how many numbers it has.
        low, high: the smallest and the largest of all.
        constant: which of its numbers never change, by their flat index.
    """

    name: str
    size: int
    low: float
    high: float
    constant: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BufferDescription:
    """The contents of a replay buffer; `print` shows them as a table.

    An episode counts if its beginning and its end are there. The behaviour score is the mean return of the episodes:
    what whoever collected the data achieved, which a policy that learns from it should reach.

    Attributes:
        num_transitions: how many there are.
        num_episodes: from their beginning to their end.
        num_unfinished: traces that are no episodes: still going on, broken off, or with the beginning overwritten.
        num_terminated, num_truncated: how the episodes end; those of both count as terminated.
        time_limit: the length at which most truncated episodes end; None without any.
        num_at_time_limit: how many of them end there.
        returns, lengths: of the episodes; None without any.
        score: the mean return.
        reference_scores: what the score is compared with.
        normalized_score: 0 at the lower reference score, 1 at the upper one.
        actions: how much of their space they use; None without transitions.
        observations: leaf by leaf; of single frames where a buffer stacks them.
    """

    num_transitions: int
    num_episodes: int
    num_unfinished: int
    num_terminated: int
    num_truncated: int
    time_limit: int | None
    num_at_time_limit: int
    returns: Quantiles | None
    lengths: Quantiles | None
    reference_scores: tuple[float, float] | None
    actions: ActionCoverage | None
    observations: tuple[ObservationRange, ...]

    @property
    def score(self) -> float | None:
        """The mean return."""
        return self.returns.mean if self.returns else None

    @property
    def normalized_score(self) -> float | None:
        """The score between the reference scores; None without them."""
        if self.reference_scores is None or self.score is None:
            return None
        low, high = self.reference_scores
        return (self.score - low) / (high - low)

    def __str__(self) -> str:
        """Return the table."""
        return "\n".join(map(escaped, _rows(self)))


def describe(ring: Ring, action_space: gym.Space[Any], reference_scores: Any, chunk_size: int) -> BufferDescription:
    """Describe a ring; see `ReplayBuffer.describe`."""
    rule = ReferenceScores | None
    reference_scores = checked("ReplayBuffer.describe", "reference_scores", reference_scores, rule)
    episodes = stored_episodes(ring)
    finished = episodes.is_finished
    length, is_terminated = episodes.length[finished], episodes.terminated[finished]
    limits, counts = np.unique(length[~is_terminated], return_counts=True)
    return BufferDescription(
        num_transitions=len(episodes.cells),
        num_episodes=len(length),
        num_unfinished=len(finished) - len(length),
        num_terminated=int(is_terminated.sum()),
        num_truncated=int((~is_terminated).sum()),
        time_limit=int(limits[counts.argmax()]) if len(limits) else None,
        num_at_time_limit=int(counts.max(initial=0)),
        returns=Quantiles.of(episodes.return_[finished]),
        lengths=Quantiles.of(length),
        reference_scores=None if reference_scores is None else (reference_scores[0], reference_scores[1]),
        actions=action_coverage(ring.columns["action"].flat, episodes.cells, action_space, chunk_size),
        observations=tuple(
            ObservationRange(
                name, low.size, float(low.min()), float(high.max()), tuple(np.flatnonzero(low == high).tolist())
            )
            for name, leaf in named_leaves(ring.columns["obs"].flat)
            for low, high in extremes(leaf, episodes.cells, chunk_size)
            if low.size
        ),
    )


def _rows(found: BufferDescription) -> list[str]:
    def row(name: str, text: str) -> str:
        return f"{name:<12}{text}".rstrip()

    def spread(values: Quantiles | None) -> str:
        columns = Quantiles.__slots__
        return "".join(f"{written(getattr(values, name)) if values else '-':>10}" for name in columns)

    ends = f"{found.num_terminated:,} terminated, {found.num_truncated:,} truncated"
    if found.time_limit is not None:
        ends += f" ({found.num_at_time_limit:,} at length {found.time_limit:,})"
    lines = [
        row("transitions", f"{found.num_transitions:,}"),
        row("episodes", f"{found.num_episodes:,}, and {found.num_unfinished:,} unfinished"),
        row("ends", ends),
        row("", "".join(f"{name:>10}" for name in ("mean", "std", "min", "25 %", "median", "75 %", "max"))),
        row("returns", spread(found.returns)),
        row("lengths", spread(found.lengths)),
    ]
    if found.normalized_score is not None and found.reference_scores is not None:
        low, high = map(written, found.reference_scores)
        lines.append(row("score", f"{found.normalized_score:.3f}, where {low} is 0 and {high} is 1"))
    if found.actions is not None:
        lines += [row("actions", text) if i == 0 else row("", text) for i, text in enumerate(found.actions.lines())]
    for leaf in found.observations:
        some = f"; constant: {listed(list(map(str, leaf.constant)))}" if leaf.constant else ""
        text = f"{leaf.size:,} numbers in [{written(leaf.low)}, {written(leaf.high)}]{some}"
        lines.append(row("obs", f"{leaf.name} {text}".strip()))
    return lines
