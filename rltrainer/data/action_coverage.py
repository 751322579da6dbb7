"""The share of an action space that the actions of a buffer use."""

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

from rltrainer.data.incoming_cells import to_array
from rltrainer.data.storage import Array
from rltrainer.spaces import num_choices


@dataclass(frozen=True, slots=True)
class ActionCoverage:
    """The share of the action space that the actions use.

    Attributes:
        shares: of each choice, for each number of a discrete action; None for a Box.
        used: the smallest and the largest value of each number of a Box; None for choices.
        bounds: its bounds.
        covered: the share of all choices that were ever taken, or of the bounded ranges that lies between the smallest
            and the largest value; None where no range is bounded.
    """

    shares: tuple[tuple[float, ...], ...] | None
    used: tuple[tuple[float, float], ...] | None
    bounds: tuple[tuple[float, float], ...] | None
    covered: float | None

    def lines(self) -> list[str]:
        """Return what stands in a table, one line for each number of an action."""
        covered = "" if self.covered is None else f"; {self.covered:.0%} covered"
        if self.shares is not None:
            lines = [listed([f"{share:.1%}" for share in shares]) for shares in self.shares[:10]]
        else:
            pairs = zip(self.used or (), self.bounds or (), strict=True)
            lines = [" of ".join(f"[{written(a)}, {written(b)}]" for a, b in pair) for pair in list(pairs)[:10]]
        num_left_out = len(self.shares or self.used or ()) - len(lines)
        lines += [f"and {num_left_out:,} more"] if num_left_out else []
        return [lines[0] + covered, *lines[1:]] if lines else []


def action_coverage(column: Tensor, cells: Array, space: gym.Space[Any], chunk_size: int) -> ActionCoverage | None:
    """Return the coverage of an action space; None without cells.

    Args:
        column: the actions of all cells, by flat index.
        cells: [M] flat indices.
        space: what the actions lie in.
        chunk_size: cells at once.
    """
    if not len(cells):
        return None
    if isinstance(space, gym.spaces.Box):
        [(low, high)] = extremes(column, cells, chunk_size)
        bounds = np.stack([space.low, space.high]).reshape(2, -1).astype(np.float64)
        width = bounds[1] - bounds[0]
        is_bounded = np.isfinite(width) & (width > 0)
        covered = ((high.astype(np.float64) - low)[is_bounded] / width[is_bounded]).clip(0, 1)
        share = float(covered.mean()) if len(covered) else None
        return ActionCoverage(None, _pairs(low, high), _pairs(*bounds), share)
    action = to_array(column)[cells].reshape(len(cells), -1).astype(np.int64)
    action -= np.asarray(getattr(space, "start", 0)).reshape(-1)
    choices = num_choices(space)
    assert choices is not None, "all but a Box are made from choices"
    shares = [np.bincount(taken, minlength=n) / len(action) for taken, n in zip(action.T, choices, strict=True)]
    covered = np.concatenate([share > 0 for share in shares])
    return ActionCoverage(tuple(tuple(share.tolist()) for share in shares), None, None, float(covered.mean()))


def extremes(leaf: Tensor, cells: Array, chunk_size: int) -> list[tuple[Array, Array]]:
    """Return the smallest and the largest values of a leaf's numbers over all cells, flat; none without cells."""
    lows, highs = [], []
    for start in range(0, len(cells), chunk_size):
        values = to_array(leaf)[cells[start : start + chunk_size]]
        lows.append(values.min(0).reshape(-1))
        highs.append(values.max(0).reshape(-1))
    return [(np.min(lows, 0), np.max(highs, 0))] if lows else []


def _pairs(low: Array, high: Array) -> tuple[tuple[float, float], ...]:
    return tuple(zip(low.tolist(), high.tolist(), strict=True))


def listed(words: list[str]) -> str:
    """Return words as a list, of which ten are written out."""
    return ", ".join(words[:10]) + (f" and {len(words) - 10:,} more" if len(words) > 10 else "")


def written(value: float) -> str:
    """Return a number as it stands in a table."""
    return f"{value:,.0f}" if math.isfinite(value) and abs(value) >= 1e5 else f"{value:.5g}"
