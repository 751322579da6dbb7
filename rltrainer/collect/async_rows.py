"""Rows of cells on their way from worker processes: queued as they come, taken as they are asked for, joined by env."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rltrainer.collect.collect_stats import CollectStats
from rltrainer.data.storage import Array
from rltrainer.tree import Tree, map_tree
from rltrainer.types import Rollout

Arrays = dict[str, Any]
"""A rollout's fields as NumPy arrays: they travel faster than tensors do, and are cut in a quarter of the time."""
OF_CELLS = ("obs", "action", "reward", "terminated", "truncated", "valid", "extra")
"""Fields of a rollout that are [T, n, ...]."""


@dataclass(slots=True)
class Rows:
    """T steps of n envs, and the episodes that ended in them.

    Args:
        arrays: the cells [T, n]; None if nobody stores them.
        stats: of all of them.
        version: of the weights that acted; their mean, where rows of several are joined.
    """

    arrays: Arrays | None
    stats: CollectStats
    version: float

    @property
    def num_rows(self) -> int:
        """T."""
        return 0 if self.arrays is None else len(self.arrays["reward"])

    @property
    def cells(self) -> Arrays:
        """The cells, where they are stored."""
        assert self.arrays is not None, "only stored rows are queued"
        return self.arrays


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


def join_envs(parts: Sequence[Arrays]) -> Arrays:
    """Return the cells of all workers side by side [T, N]; cells beyond a worker's rows are not valid."""
    if len(parts) == 1:
        return parts[0]
    num_rows = max(len(each["reward"]) for each in parts)
    parts = [_padded(each, num_rows) for each in parts]
    num_envs = sum(each["reward"].shape[1] for each in parts)
    index, first = [], 0
    for each in parts:
        n = each["reward"].shape[1]
        index.append(each["final_index"] // n * num_envs + each["final_index"] % n + first)
        first += n
    final_index = np.concatenate(index)
    order = np.argsort(final_index)
    joined = {name: _cat([each[name] for each in parts], 1) for name in OF_CELLS}
    joined |= {name: _cat([each[name] for each in parts], 0) for name in ("last_obs", "starts")}
    final_obs = map_tree(lambda leaf: leaf[order], _cat([each["final_obs"] for each in parts], 0))
    return joined | {"final_obs": final_obs, "final_index": final_index[order]}


def join_stats(parts: Sequence[Rows], seconds: float) -> CollectStats:
    """Return the statistics of all workers, which took this long together; episodes in the order of the workers."""
    merged = CollectStats.merge([part.stats for part in parts])
    return replace(merged, collect_time=seconds)


def to_arrays(rollout: Rollout) -> Arrays:
    """Return a rollout as arrays."""
    return {name: map_tree(lambda x: x.cpu().numpy(), getattr(rollout, name)) for name in Rollout.__slots__}


def as_numpys_own(arrays: Arrays) -> Arrays:
    """Return arrays that were pickled with NumPy's own dtype objects, by which buffers know them at once."""
    return {name: map_tree(lambda x: x.view(np.dtype(x.dtype.str)), tree) for name, tree in arrays.items()}


def from_arrays(arrays: Arrays) -> Rollout:
    """Return the rollout that these arrays are of."""
    return Rollout(**{name: map_tree(torch.from_numpy, tree) for name, tree in arrays.items()})


def single_row(arrays: Arrays) -> tuple[Tree, ...] | None:
    """Return the only row as the arguments of `ReplayBuffer.add`; None unless there is one, and all of it is valid."""
    if len(arrays["reward"]) != 1 or not arrays["valid"].all():
        return None
    next_obs = arrays["last_obs"]
    if len(arrays["final_index"]):
        next_obs = map_tree(np.copy, next_obs)
        _put(next_obs, arrays["final_index"], arrays["final_obs"])
    first = {name: map_tree(lambda x: x[0], arrays[name]) for name in OF_CELLS}
    return (
        first["obs"], first["action"], first["reward"], next_obs, first["terminated"], first["truncated"],
        first["extra"] or None,
    )  # fmt: skip


def mean_version(parts: Sequence[Rows]) -> float:
    """Return the mean version of the weights that made these rows."""
    counts = [max(part.stats.num_env_steps, 1) for part in parts]
    return sum(part.version * n for part, n in zip(parts, counts, strict=True)) / sum(counts)


def _slice(rows: Rows, tally: list[list[int]], start: int, stop: int) -> Rows:
    """Return some of the rows; `tally` holds how many cells, episodes and final observations are before each row."""
    whole = rows.cells
    if start == 0 and stop == rows.num_rows:
        return rows
    num_envs = whole["reward"].shape[1]
    (cells_before, ended, final), (cells_after, ended_after, final_after) = tally[start], tally[stop]
    arrays = {name: map_tree(lambda x: x[start:stop], whole[name]) for name in OF_CELLS}
    arrays["last_obs"] = whole["last_obs"] if stop == rows.num_rows else map_tree(lambda x: x[stop], whole["obs"])
    arrays["final_obs"] = map_tree(lambda x: x[final:final_after], whole["final_obs"])
    arrays["final_index"] = whole["final_index"][final:final_after] - start * num_envs
    arrays["starts"] = whole["starts"] if start == 0 else np.zeros_like(whole["starts"])
    episodes = slice(ended, ended_after)
    returns, lengths = rows.stats.returns[episodes], rows.stats.lengths[episodes]
    infos = {name: values[episodes] for name, values in rows.stats.infos.items()}
    stats = CollectStats(cells_after - cells_before, (stop - start) * num_envs, returns, lengths, 0.0, infos)
    return Rows(arrays, stats, rows.version)


def _tally(rows: Rows) -> list[list[int]]:
    """Return how many valid cells, ends of counted episodes and final observations are before each row [T + 1, 3]."""
    whole = rows.cells
    valid = whole["valid"]
    final = np.zeros_like(valid)
    final.reshape(-1)[whole["final_index"]] = True
    done = whole["terminated"] | whole["truncated"]
    counts = np.stack([valid.sum(1), (valid & done).sum(1), final.sum(1)], 1)
    tally: list[list[int]] = np.concatenate([np.zeros_like(counts[:1]), counts.cumsum(0)]).tolist()
    return tally


def _join_in_time(parts: Sequence[Rows]) -> Rows:
    """Return rows that follow each other as one; the version is the mean, as each cell's own is in `extra`."""
    cells, num_envs = [part.cells for part in parts], parts[0].cells["reward"].shape[1]
    offsets = np.cumsum([0, *(part.num_rows for part in parts)]).tolist()
    index = [each["final_index"] + first * num_envs for each, first in zip(cells, offsets, strict=False)]
    arrays = {name: _cat([each[name] for each in cells], 0) for name in (*OF_CELLS, "final_obs")}
    arrays |= {"last_obs": cells[-1]["last_obs"], "final_index": np.concatenate(index), "starts": cells[0]["starts"]}
    return Rows(arrays, join_stats(parts, 0.0), mean_version(parts))


def _padded(arrays: Arrays, num_rows: int) -> Arrays:
    """Return the cells with more rows, in which nothing happens and that are not valid."""
    missing = num_rows - len(arrays["reward"])
    if not missing:
        return arrays
    cells = {n: map_tree(lambda x: np.concatenate([x, x[-1:].repeat(missing, 0)]), arrays[n]) for n in OF_CELLS}
    for name in ("reward", "terminated", "truncated", "valid"):
        cells[name][-missing:] = 0
    return arrays | cells


def _cat(trees: Sequence[Tree], axis: int) -> Tree:
    return map_tree(lambda *leaves: np.concatenate(leaves, axis), trees[0], *trees[1:])


def _put(tree: Tree, rows: Array, values: Tree) -> None:
    """Write the values of some rows into arrays."""

    def put(leaf: Array, value: Array) -> None:
        leaf[rows] = value

    map_tree(put, tree, values)
