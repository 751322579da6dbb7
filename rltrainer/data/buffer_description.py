"""The contents of a replay buffer: its episodes, and numbers to look at before training on it."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.data.ring import Ring
from rltrainer.data.storage import Array
from rltrainer.data.transition_sources import CHUNK_SIZE
from rltrainer.errors import escaped
from rltrainer.spaces import num_choices
from rltrainer.tree import named_leaves, to_array
from rltrainer.validation.field_rules import Rule, checked, is_finite


def _are_in_order(scores: Any) -> bool:
    return isinstance(scores, Sequence) and len(scores) == 2 and all(map(is_finite, scores)) and scores[0] < scores[1]


ReferenceScores = Annotated[tuple[float, float], Rule("two finite numbers, the lower one first", _are_in_order)]


@dataclass(frozen=True, slots=True)
class StoredEpisodes:
    """The E trajectories of M transitions: env by env, in each env the oldest first."""

    # [M]: the flat indices of all transitions, and at which of them a trajectory ends.
    slots: Array
    last: Array
    # [E]: transitions of each trajectory, the sum of their rewards (float64), and how it ended: unfinished if neither.
    length: Array
    return_: Array
    terminated: Array
    truncated: Array
    # [E]: False where the ring has overwritten the start.
    is_whole: Array

    @property
    def is_finished(self) -> Array:
        """Trajectories that are episodes from their start to their end [E] bool."""
        return self.is_whole & (self.terminated | self.truncated)

    def warn_of_lost_beginnings(self, caller: str) -> None:
        """Log how many transitions the caller leaves out, because the starts of their episodes are overwritten."""
        if num_left_out := int(self.length[~self.is_whole].sum()):
            text = "%s: %d of %d transitions belong to episodes whose beginning was overwritten, and are left out"
            logging.getLogger("rltrainer").warning(text, caller, num_left_out, len(self.slots))


def stored_episodes(ring: Ring) -> StoredEpisodes:
    """Return the episodes of a ring."""
    sizes = ring.sizes()
    env_end = np.cumsum(sizes)[sizes > 0] - 1
    slots = to_array(ring.slots(torch.arange(len(ring), device=ring.device)))
    is_last = ring.final.index.reshape(-1)[slots] > 0
    is_last[env_end] = True
    last = np.flatnonzero(is_last)
    length = np.diff(last, prepend=-1)
    names = ("reward", "terminated", "truncated")
    reward, terminated, truncated = (to_array(ring.columns[name].flat)[slots] for name in names)
    first = last - length + 1
    has_lost_its_beginning = np.isin(first, (env_end - sizes[sizes > 0] + 1)[(ring.written > sizes)[sizes > 0]])
    return StoredEpisodes(
        slots=slots,
        last=is_last,
        length=length,
        return_=np.add.reduceat(reward.astype(np.float64), first) if len(first) else np.zeros(0),
        terminated=terminated[last],
        truncated=truncated[last],
        is_whole=~has_lost_its_beginning,
    )


@dataclass(frozen=True, slots=True)
class ActionCoverage:
    """The share of the action space that the actions use.

    Attributes:
        shares: of each choice, for each number of a discrete action; None for a Box.
        used: the smallest and the largest value of each number of a Box; None for choices.
        bounds: its bounds.
        covered: the share of all choices that were ever taken, or of the bounded ranges between the smallest and the
            largest value; None where no range is bounded.
    """

    shares: tuple[tuple[float, ...], ...] | None
    used: tuple[tuple[float, float], ...] | None
    bounds: tuple[tuple[float, float], ...] | None
    covered: float | None

    def lines(self) -> list[str]:
        """Return the lines of a table, one for each number of an action."""
        if self.shares is not None:
            lines = [_listed([f"{share:.1%}" for share in shares]) for shares in self.shares]
        else:
            pairs = zip(self.used or (), self.bounds or (), strict=True)
            lines = [" of ".join(f"[{_written(a)}, {_written(b)}]" for a, b in pair) for pair in pairs]
        if lines and self.covered is not None:
            lines[0] += f"; {self.covered:.0%} covered"
        return lines[:10] + ([f"and {len(lines) - 10:,} more"] if len(lines) > 10 else [])


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The distribution of numbers."""

    mean: float
    std: float
    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float
    maximum: float


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

    An episode counts if its start and its end are there. `score` is the mean return of the episodes: a policy that
    learns from the data should reach it.

    Attributes:
        num_transitions: how many there are.
        num_episodes: from their start to their end.
        num_unfinished: other trajectories: still running, ended from outside, or with the start overwritten.
        num_terminated, num_truncated: how the episodes end; an episode with both ends counts as terminated.
        time_limit: the length at which most truncated episodes end; None without any.
        num_at_time_limit: how many of them end there.
        returns, lengths: of the episodes; None without any.
        reference_scores: scores to compare with.
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
        """The score, 0 at the lower reference score and 1 at the upper one; None without them."""
        if self.reference_scores is None or self.score is None:
            return None
        low, high = self.reference_scores
        return (self.score - low) / (high - low)

    def __str__(self) -> str:
        """Return the table."""
        return "\n".join(map(escaped, _rows(self)))


def describe(ring: Ring, action_space: gym.Space[Any], reference_scores: Any) -> BufferDescription:
    """Describe a ring; see `ReplayBuffer.describe`, for errors too."""
    reference_scores = checked("ReplayBuffer.describe", "reference_scores", reference_scores, ReferenceScores | None)
    episodes = stored_episodes(ring)
    finished = episodes.is_finished
    length, is_terminated = episodes.length[finished], episodes.terminated[finished]
    limits, counts = np.unique(length[~is_terminated], return_counts=True)
    return BufferDescription(
        num_transitions=len(episodes.slots),
        num_episodes=len(length),
        num_unfinished=len(finished) - len(length),
        num_terminated=int(is_terminated.sum()),
        num_truncated=int((~is_terminated).sum()),
        time_limit=int(limits[counts.argmax()]) if len(limits) else None,
        num_at_time_limit=int(counts.max(initial=0)),
        returns=_quantiles(episodes.return_[finished]),
        lengths=_quantiles(length),
        reference_scores=None if reference_scores is None else (reference_scores[0], reference_scores[1]),
        actions=action_coverage(ring.columns["action"].flat, episodes.slots, action_space),
        observations=tuple(
            ObservationRange(
                name, low.size, float(low.min()), float(high.max()), tuple(np.flatnonzero(low == high).tolist())
            )
            for name, leaf in named_leaves(ring.columns["obs"].flat)
            for low, high in _extremes(leaf, episodes.slots)
            if low.size
        ),
    )


def _quantiles(values: Array) -> Quantiles | None:
    if not len(values):
        return None
    return Quantiles(float(values.mean()), float(values.std()), *np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist())


def action_coverage(column: Tensor, slots: Array, space: gym.Space[Any]) -> ActionCoverage | None:
    """Return the coverage of an action space by a column at slots [M]; None without any."""
    if not len(slots):
        return None
    if isinstance(space, gym.spaces.Box):
        [(low, high)] = _extremes(column, slots)
        bounds = np.stack([space.low, space.high]).reshape(2, -1).astype(np.float64)
        width = bounds[1] - bounds[0]
        is_bounded = np.isfinite(width) & (width > 0)
        covered = ((high.astype(np.float64) - low)[is_bounded] / width[is_bounded]).clip(0, 1)
        return ActionCoverage(None, _pairs(low, high), _pairs(*bounds), float(covered.mean()) if len(covered) else None)
    action = to_array(column)[slots].reshape(len(slots), -1).astype(np.int64)
    action -= np.asarray(getattr(space, "start", 0)).reshape(-1)
    choices = num_choices(space)
    assert choices is not None, "all but a Box are made from choices"
    shares = [np.bincount(taken, minlength=n) / len(action) for taken, n in zip(action.T, choices, strict=True)]
    covered = np.concatenate([share > 0 for share in shares])
    return ActionCoverage(tuple(tuple(share.tolist()) for share in shares), None, None, float(covered.mean()))


def _extremes(leaf: Tensor, slots: Array) -> list[tuple[Array, Array]]:
    """Return the smallest and the largest values of a leaf's numbers, flat; none without slots."""
    lows, highs = [], []
    for start in range(0, len(slots), CHUNK_SIZE):
        values = to_array(leaf)[slots[start : start + CHUNK_SIZE]]
        lows.append(values.min(0).ravel())
        highs.append(values.max(0).ravel())
    return [(np.min(lows, 0), np.max(highs, 0))] if lows else []


def _pairs(low: Array, high: Array) -> tuple[tuple[float, float], ...]:
    return tuple(zip(low.tolist(), high.tolist(), strict=True))


def _listed(words: list[str]) -> str:
    return ", ".join(words[:10]) + (f" and {len(words) - 10:,} more" if len(words) > 10 else "")


def _written(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) and abs(value) >= 1e5 else f"{value:.5g}"


def _rows(found: BufferDescription) -> list[str]:
    """Return the lines of the table."""
    ends = f"{found.num_terminated:,} terminated, {found.num_truncated:,} truncated"
    if found.time_limit is not None:
        ends += f" ({found.num_at_time_limit:,} at length {found.time_limit:,})"
    rows = [
        ("transitions", f"{found.num_transitions:,}"),
        ("episodes", f"{found.num_episodes:,}, and {found.num_unfinished:,} unfinished"),
        ("ends", ends),
        ("", "".join(f"{name:>10}" for name in ("mean", "std", "min", "25 %", "median", "75 %", "max"))),
    ]
    for name, values in (("returns", found.returns), ("lengths", found.lengths)):
        numbers = [_written(getattr(values, field)) if values else "-" for field in Quantiles.__slots__]
        rows.append((name, "".join(f"{number:>10}" for number in numbers)))
    if found.normalized_score is not None and found.reference_scores is not None:
        low, high = map(_written, found.reference_scores)
        rows.append(("score", f"{found.normalized_score:.3f}, where {low} is 0 and {high} is 1"))
    if found.actions is not None:
        rows += [("" if i else "actions", text) for i, text in enumerate(found.actions.lines())]
    for leaf in found.observations:
        some = f"; constant: {_listed(list(map(str, leaf.constant)))}" if leaf.constant else ""
        text = f"{leaf.size:,} numbers in [{_written(leaf.low)}, {_written(leaf.high)}]{some}"
        rows.append(("obs", f"{leaf.name} {text}".strip()))
    return [f"{name:<12}{text}".rstrip() for name, text in rows]
