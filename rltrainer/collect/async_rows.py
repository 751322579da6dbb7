"""Rows of cells on their way from worker processes: queued as they come, taken as they are asked for, joined by env."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rltrainer.collect.collect_stats import CollectStats
from rltrainer.tree import Tree, map_tree
from rltrainer.types import Rollout

OF_CELLS = ("obs", "action", "reward", "terminated", "truncated", "valid", "extra")
"""Fields of a rollout that are [T, n, ...]."""


@dataclass(slots=True)
class Rows:
    """T steps of n envs, and the episodes that ended in them.

    Args:
        rollout: the cells [T, n]; None if nobody stores them.
        stats: of all of them.
        version: of the weights that acted; their mean, where rows of several are joined.
    """

    rollout: Rollout | None
    stats: CollectStats
    version: float

    @property
    def num_rows(self) -> int:
        """T."""
        return 0 if self.rollout is None else len(self.rollout.reward)

    @property
    def cells(self) -> Rollout:
        """The cells, where they are stored."""
        assert self.rollout is not None, "only stored rows are queued"
        return self.rollout


class RowQueue:
    """Rows of one worker's envs, oldest first."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Rows, list[list[int]]]] = deque()
        self._offset = 0  # rows of the first that were taken
        self.num_rows = 0

    def put(self, rows: Rows) -> None:
        """Append rows that go on where the last ones ended."""
        self._queue.append((rows, _tally(rows)))
        self.num_rows += rows.num_rows

    def take(self, num_rows: int) -> Rows:
        """Return the oldest rows, of which there must be as many."""
        parts = []
        self.num_rows -= num_rows
        while num_rows:
            first, tally = self._queue[0]
            stop = min(self._offset + num_rows, first.num_rows)
            parts.append(_slice(first, tally, self._offset, stop))
            num_rows -= stop - self._offset
            self._offset = stop
            if stop == first.num_rows:
                self._queue.popleft()
                self._offset = 0
        return parts[0] if len(parts) == 1 else _join_in_time(parts)

    def clear(self) -> None:
        """Forget all rows."""
        self._queue.clear()
        self._offset = self.num_rows = 0


def join_envs(rollouts: Sequence[Rollout]) -> Rollout:
    """Return the cells of all workers side by side [T, N]; cells beyond a worker's rows are not valid."""
    if len(rollouts) == 1:
        return rollouts[0]
    num_rows = max(len(each.reward) for each in rollouts)
    rollouts = [_padded(each, num_rows) for each in rollouts]
    num_envs = sum(each.reward.shape[1] for each in rollouts)
    index, first = [], 0
    for each in rollouts:
        n = each.reward.shape[1]
        index.append(each.final_index // n * num_envs + each.final_index % n + first)
        first += n
    final_index, order = torch.cat(index).sort()

    def cat(name: str, axis: int) -> Tree:
        trees = [getattr(each, name) for each in rollouts]
        return map_tree(lambda *leaves: torch.cat(leaves, axis), trees[0], *trees[1:])

    cells = {name: cat(name, 1) for name in OF_CELLS}
    final_obs = map_tree(lambda leaf: leaf[order], cat("final_obs", 0))
    ends = {name: cat(name, 0) for name in ("last_obs", "starts")}
    return Rollout(**cells, **ends, final_obs=final_obs, final_index=final_index)


def join_stats(parts: Sequence[Rows], seconds: float) -> CollectStats:
    """Return the statistics of all workers, which took this long together; episodes in the order of the workers."""
    merged = CollectStats.merge([part.stats for part in parts])
    return CollectStats(merged.num_collected_steps, merged.num_env_steps, merged.returns, merged.lengths, seconds)


def to_arrays(rollout: Rollout) -> dict[str, Tree]:
    """Return a rollout as arrays, which travel faster than tensors do."""
    return {name: map_tree(lambda x: x.cpu().numpy(), getattr(rollout, name)) for name in Rollout.__slots__}


def from_arrays(arrays: dict[str, Tree]) -> Rollout:
    """Return the rollout that these arrays are of."""
    return Rollout(**{name: map_tree(torch.from_numpy, tree) for name, tree in arrays.items()})


def single_row(rollout: Rollout) -> tuple[Tree, ...] | None:
    """Return the only row as the arguments of `ReplayBuffer.add`; None unless there is one, and all of it is valid."""
    if len(rollout.reward) != 1 or not bool(rollout.valid.all()):
        return None
    next_obs = rollout.next_obs if len(rollout.final_index) else map_tree(lambda x: x.unsqueeze(0), rollout.last_obs)
    cells = (rollout.obs, rollout.action, rollout.reward, next_obs, rollout.terminated, rollout.truncated)
    row = map_tree(lambda x: x[0].numpy(), (*cells, rollout.extra))
    return (*row[:-1], row[-1] or None)


def mean_version(parts: Sequence[Rows]) -> float:
    """Return the mean version of the weights that made these rows."""
    counts = [max(part.stats.num_env_steps, 1) for part in parts]
    return sum(part.version * n for part, n in zip(parts, counts, strict=True)) / sum(counts)


def _slice(rows: Rows, tally: list[list[int]], start: int, stop: int) -> Rows:
    """Return some of the rows; `tally` holds how many cells, episodes and final observations are before each row."""
    whole = rows.cells
    if start == 0 and stop == rows.num_rows:
        return rows
    num_envs = whole.reward.shape[1]
    (cells_before, ended, final), (cells_after, ended_after, final_after) = tally[start], tally[stop]
    rollout = Rollout(
        **{name: map_tree(lambda x: x[start:stop], getattr(whole, name)) for name in OF_CELLS},
        last_obs=whole.last_obs if stop == rows.num_rows else map_tree(lambda x: x[stop], whole.obs),
        final_obs=map_tree(lambda x: x[final:final_after], whole.final_obs),
        final_index=whole.final_index[final:final_after] - start * num_envs,
        starts=whole.starts if start == 0 else torch.zeros_like(whole.starts),
    )
    episodes = slice(ended, ended_after)
    returns, lengths = rows.stats.returns[episodes], rows.stats.lengths[episodes]
    stats = CollectStats(cells_after - cells_before, (stop - start) * num_envs, returns, lengths, 0.0)
    return Rows(rollout, stats, rows.version)


def _tally(rows: Rows) -> list[list[int]]:
    """Return how many valid cells, ends of counted episodes and final observations are before each row [T + 1, 3]."""
    whole = rows.cells
    final = torch.zeros_like(whole.valid)
    final.view(-1)[whole.final_index] = True
    counts = torch.stack([whole.valid.sum(1), (whole.valid & whole.done).sum(1), final.sum(1)], 1)
    tally: list[list[int]] = torch.cat([torch.zeros_like(counts[:1]), counts.cumsum(0)]).tolist()
    return tally


def _join_in_time(parts: Sequence[Rows]) -> Rows:
    """Return rows that follow each other as one; the version is the mean, as each cell's own is in `extra`."""
    rollouts, num_envs = [part.cells for part in parts], parts[0].cells.reward.shape[1]
    offsets = np.cumsum([0, *(part.num_rows for part in parts)]).tolist()
    index = [each.final_index + first * num_envs for each, first in zip(rollouts, offsets, strict=False)]

    def cat(name: str) -> Tree:
        trees = [getattr(each, name) for each in rollouts]
        return map_tree(lambda *leaves: torch.cat(leaves), trees[0], *trees[1:])

    rollout = Rollout(
        **{name: cat(name) for name in (*OF_CELLS, "final_obs")},
        last_obs=rollouts[-1].last_obs,
        final_index=torch.cat(index),
        starts=rollouts[0].starts,
    )
    return Rows(rollout, join_stats(parts, 0.0), mean_version(parts))


def _padded(rollout: Rollout, num_rows: int) -> Rollout:
    """Return a rollout of more rows, in which nothing happens and that are not valid."""
    missing = num_rows - len(rollout.reward)
    if not missing:
        return rollout

    def pad(leaf: Tensor) -> Tensor:
        return torch.cat([leaf, leaf[-1:].expand(missing, *leaf.shape[1:])])

    cells = {name: map_tree(pad, getattr(rollout, name)) for name in OF_CELLS}
    for name in ("reward", "terminated", "truncated", "valid"):
        cells[name][-missing:] = 0
    rest = {name: getattr(rollout, name) for name in ("last_obs", "final_obs", "final_index", "starts")}
    return Rollout(**cells, **rest)
