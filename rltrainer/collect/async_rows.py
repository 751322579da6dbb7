"""Rows of steps on their way from worker processes: queued as they come, taken as asked for, joined by env."""

import operator
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rltrainer.collect.collect_stats import CollectStats
from rltrainer.tree import Tree, map_tree
from rltrainer.types import Rollout

# A rollout's fields as NumPy arrays: they travel faster than tensors do, and are cut in a quarter of the time.
Arrays = dict[str, Any]
# Fields of a rollout that are [T, n, ...].
OF_STEPS = ("obs", "action", "reward", "terminated", "truncated", "valid", "extra")


@dataclass(slots=True)
class Rows:
    """T steps of n envs.

    Args:
        arrays: the steps [T, n]; empty if no buffer stores them.
        stats: of all of them.
        version: of the weights that acted; the mean if rows of several are joined.
        num_env_restarts: the envs that failed in this worker so far.
    """

    arrays: Arrays
    stats: CollectStats
    version: float
    num_env_restarts: int = 0
    num_rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_rows = len(self.arrays["reward"]) if self.arrays else 0


class RowQueue:
    """Rows of one worker's envs, oldest first."""

    def __init__(self) -> None:
        # With each portion, how many valid steps, ends of counted episodes and final observations precede its rows.
        self._queue: deque[tuple[Rows, list[list[int]]]] = deque()
        self._offset = 0  # rows of the first portion that were taken
        self.num_rows, self._is_broken = 0, False

    def put(self, rows: Rows) -> None:
        """Append rows [T, n] that continue the last ones."""
        valid, final = rows.arrays["valid"], np.zeros_like(rows.arrays["valid"])
        final.reshape(-1)[rows.arrays["final_index"]] = True
        done = rows.arrays["terminated"] | rows.arrays["truncated"]
        counts = np.stack([valid.sum(1), (valid & done).sum(1), final.sum(1)], 1)
        self._queue.append((rows, np.concatenate([np.zeros_like(counts[:1]), counts.cumsum(0)]).tolist()))
        self.num_rows += rows.num_rows

    def take(self, num_rows: int) -> Rows:
        """Return the oldest rows [num_rows, n]; there must be as many."""
        parts = []
        self.num_rows -= num_rows
        while num_rows:
            first, counts = self._queue[0]
            start, self._offset = self._offset, min(self._offset + num_rows, first.num_rows)
            parts.append(_slice(first, counts, start, self._offset))
            num_rows -= self._offset - start
            if self._offset == first.num_rows:
                self._queue.popleft()
                self._offset = 0
        rows = parts[0] if len(parts) == 1 else _join_in_time(parts)
        if self._is_broken:
            rows.arrays["starts"], self._is_broken = np.ones_like(rows.arrays["starts"]), False
        return rows

    def refuse(self, oldest: float) -> int:
        """Drop rows of weights before a version, after which no trajectory continues; return their number."""
        before = self.num_rows
        while self._queue and self._queue[0][0].version < oldest:
            self.num_rows -= self._queue.popleft()[0].num_rows - self._offset
            self._offset, self._is_broken = 0, True
        return before - self.num_rows

    def clear(self) -> None:
        """Forget all rows."""
        self._queue.clear()
        self._offset = self.num_rows = 0


def join_envs(parts: Sequence[Arrays]) -> Arrays:
    """Return the steps of all workers side by side [T, N]; steps beyond a worker's rows are not valid."""
    if len(parts) == 1:
        return parts[0]
    num_rows = max(len(each["reward"]) for each in parts)
    parts = [_padded(each, num_rows) for each in parts]
    firsts = np.cumsum([0, *(each["reward"].shape[1] for each in parts)]).tolist()
    # A final observation's place t * n + m in a worker's rows becomes t * N + first + m.
    index = [
        each["final_index"] // (stop - first) * firsts[-1] + each["final_index"] % (stop - first) + first
        for each, first, stop in zip(parts, firsts, firsts[1:], strict=False)
    ]
    final_index = np.concatenate(index)
    # A rollout orders its final observations by time; here one worker's follow another's.
    order = np.argsort(final_index)
    joined = {name: _cat(parts, name, axis=1) for name in OF_STEPS}
    joined |= {name: _cat(parts, name) for name in ("last_obs", "starts")}
    final_obs = map_tree(lambda leaf: leaf[order], _cat(parts, "final_obs"))
    return joined | {"final_obs": final_obs, "final_index": final_index[order]}


def to_arrays(rollout: Rollout) -> Arrays:
    """Return a rollout [T, N] as arrays."""
    return {name: map_tree(lambda x: x.cpu().numpy(), getattr(rollout, name)) for name in Rollout.__slots__}


def as_numpys_own(arrays: Arrays) -> Arrays:
    """Return arrays that were pickled with NumPy's own dtype objects; buffers then know them at once."""
    return {name: map_tree(lambda x: x.view(np.dtype(x.dtype.str)), tree) for name, tree in arrays.items()}


def from_arrays(arrays: Arrays) -> Rollout:
    """Return the rollout [T, N] that these arrays are of."""
    return Rollout(**{name: map_tree(torch.from_numpy, tree) for name, tree in arrays.items()})


def single_row(arrays: Arrays) -> tuple[Tree, ...] | None:
    """Return the only row [N, ...] as arguments of `ReplayBuffer.add`; None unless there is one, and all is valid."""
    if len(arrays["reward"]) != 1 or not arrays["valid"].all():
        return None
    next_obs, index = arrays["last_obs"], arrays["final_index"]
    if len(index):
        next_obs = map_tree(np.copy, next_obs)
        map_tree(lambda leaf, final: operator.setitem(leaf, index, final), next_obs, arrays["final_obs"])
    obs, action, reward, terminated, truncated, _, extra = (map_tree(lambda x: x[0], arrays[name]) for name in OF_STEPS)
    return obs, action, reward, next_obs, terminated, truncated, extra or None


def mean_version(parts: Sequence[Rows]) -> float:
    """Return the mean version of the weights that made these rows [T, n]."""
    counts = [max(part.stats.num_env_steps, 1) for part in parts]
    return sum(part.version * n for part, n in zip(parts, counts, strict=True)) / sum(counts)


def _slice(rows: Rows, counts: list[list[int]], start: int, stop: int) -> Rows:
    """Return some of the rows; for `counts` see `RowQueue`."""
    whole, stats = rows.arrays, rows.stats
    if start == 0 and stop == rows.num_rows:
        return rows
    num_envs = whole["reward"].shape[1]
    (steps_before, ended, final), (steps_after, ended_after, final_after) = counts[start], counts[stop]
    arrays = {name: map_tree(lambda x: x[start:stop], whole[name]) for name in OF_STEPS}
    # If the portion continues, the successor of the last row is the next row's observation.
    arrays["last_obs"] = whole["last_obs"] if stop == rows.num_rows else map_tree(lambda x: x[stop], whole["obs"])
    arrays["final_obs"] = map_tree(lambda x: x[final:final_after], whole["final_obs"])
    arrays["final_index"] = whole["final_index"][final:final_after] - start * num_envs
    arrays["starts"] = whole["starts"] if start == 0 else np.zeros_like(whole["starts"])
    episodes = slice(ended, ended_after)
    infos = {name: values[episodes] for name, values in stats.infos.items()}
    num_steps, num_env_steps = steps_after - steps_before, (stop - start) * num_envs
    stats = CollectStats(num_steps, num_env_steps, stats.returns[episodes], stats.lengths[episodes], 0.0, infos)
    return Rows(arrays, stats, rows.version)


def _join_in_time(parts: Sequence[Rows]) -> Rows:
    """Return rows that follow each other as one; the version is the mean, as each step's own is in `extra`."""
    all_arrays, num_envs = [part.arrays for part in parts], parts[0].arrays["reward"].shape[1]
    offsets = np.cumsum([0, *(part.num_rows for part in parts)]).tolist()
    index = [each["final_index"] + first * num_envs for each, first in zip(all_arrays, offsets, strict=False)]
    arrays = {name: _cat(all_arrays, name) for name in (*OF_STEPS, "final_obs")}
    arrays |= {"last_obs": all_arrays[-1]["last_obs"], "starts": all_arrays[0]["starts"]}
    arrays["final_index"] = np.concatenate(index)
    return Rows(arrays, CollectStats.merge([part.stats for part in parts]), mean_version(parts))


def _padded(arrays: Arrays, num_rows: int) -> Arrays:
    """Return the steps with more rows, in which nothing happens and that are not valid."""
    missing = num_rows - len(arrays["reward"])
    if not missing:
        return arrays
    steps = {n: map_tree(lambda x: np.concatenate([x, x[-1:].repeat(missing, 0)]), arrays[n]) for n in OF_STEPS}
    for name in ("reward", "terminated", "truncated", "valid"):
        steps[name][-missing:] = 0
    return arrays | steps


def _cat(parts: Sequence[Arrays], name: str, axis: int = 0) -> Tree:
    return map_tree(lambda *leaves: np.concatenate(leaves, axis), *(each[name] for each in parts))
