"""The rows of a replay buffer as a log: each transition has a number, and files hold those from one number to another.

Each env counts its transitions from the first that it ever stored. Once the next one is stored, a transition never
changes, so a file of rows is written once. Each env's newest transition may still turn out to end its trajectory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rltrainer.data.incoming_cells import to_array
from rltrainer.data.ring import Ring
from rltrainer.data.state_checks import check_tensor, check_tree, require
from rltrainer.data.storage import Array, Rows, numbered
from rltrainer.errors import ReplayBufferError, readable
from rltrainer.tree import map_tree, named_leaves
from rltrainer.types import State

MIN_NBYTES, MAX_NBYTES = 2**18, 2**25
"""Bytes of a file of rows: the rows of a smaller one are written again with those that follow; more take two files."""


@dataclass(frozen=True)
class RowFile:
    """A file that holds rows: its name, its size in bytes, and its SHA-256 in hex."""

    name: str
    size: int
    sha256: str


class RowLog:
    """The rows of a ring for a save: those that files hold already, and those that are new."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._settled = np.maximum(ring.written - 1, 0)
        self._oldest = ring.oldest(ring.written)

    def kept(self, is_there: Callable[[RowFile], bool]) -> dict[RowFile, Array]:
        """Return the files that the next one continues, and up to which number each goes [N].

        Args:
            is_there: whether a file still holds what was written.
        """
        files = {file: stop for file, stop in self._ring.saved.items() if (stop > self._oldest).any()}
        if not all(map(is_there, files)):
            return {}
        while files and next(reversed(files)).size < MIN_NBYTES:
            files.popitem()
        return files

    def new(self, kept: dict[RowFile, Array]) -> Iterator[tuple[State, Array, Array]]:
        """Yield the rows that are missing in those files: the contents of each file, its first number and its end.

        Each env's newest row is left out; see `tail`.
        """
        start = self._oldest if not kept else np.maximum(next(reversed(kept.values())), self._oldest)
        step = max(MAX_NBYTES // max(self._ring.nbytes // self._ring.num_rows, 1), 1)
        while (start < self._settled).any():
            stop = np.minimum(start + step, self._settled)
            yield rows_between(self._ring, start, stop), start, stop
            start = stop

    def tail(self) -> State:
        """Return the contents of each env's newest row, which may still change."""
        return rows_between(self._ring, self._settled, self._ring.written)

    def saved(self, files: dict[RowFile, Array]) -> None:
        """Note which files hold all rows but the newest."""
        self._ring.saved = files


def rows_between(ring: Ring, start: Array, stop: Array) -> State:
    """Return copies of the rows of a ring from one number of each env up to another [N] each."""
    env, number = numbered(start, stop)
    cells = number % ring.num_rows * ring.num_envs + env
    at = torch.from_numpy(cells).to(ring.device)
    columns = {name: column.gather(at) for name, column in ring.columns.items()}
    return _state(ring, start, stop, columns, cells)


def all_rows(ring: Ring) -> list[State]:
    """Return all rows of a ring as views: those of all envs at once if they are in step, else env by env."""
    written, position = ring.written, ring.oldest(ring.written)
    in_step = bool((written == written[0]).all())
    found = []
    for env in [None] if in_step else range(ring.num_envs):
        while position[env or 0] < written[env or 0]:
            first = int(position[env or 0])
            row = first % ring.num_rows
            num_rows = min(int(written[env or 0]) - first, ring.num_rows - row)  # up to where the memory begins again
            start = position.copy()
            position[slice(None) if env is None else env] += num_rows
            views = {name: column.rows(row + num_rows, row) for name, column in ring.columns.items()}
            columns = map_tree(lambda x, env=env: x.flatten(0, 1) if env is None else x[:, env], views)
            envs = np.arange(ring.num_envs) if env is None else np.array([env])
            cells = (np.arange(row, row + num_rows)[:, None] * ring.num_envs + envs).reshape(-1)
            found.append(_state(ring, start, position.copy(), columns, cells))
    return found


def read_rows(name: str, ring: Ring, state: State) -> Rows:
    """Check the contents of a file of rows against the ring that they are meant for, and against themselves.

    Raises:
        ReplayBufferError: something is missing, has another shape or dtype, or contradicts the rest.
    """
    require(isinstance(state, dict), f"{name}: expected rows, found {readable(state)}")
    try:
        start, stop = (to_array(check_tensor(state, key, torch.int64, (ring.num_envs,))) for key in ("start", "stop"))
        is_range = bool(((start >= 0) & (start <= stop) & (stop < 2**62)).all())
        require(is_range and float((stop - start).sum(dtype=np.float64)) < 2**53, "start, stop: expected numbers")
        size = int((stop - start).sum())
        columns = check_tree(state, "data", ring.specs, (size,))
        index = to_array(check_tensor(state, "final_index", torch.int64, None))
        final_obs = check_tree(state, "final_obs", ring.specs["obs"], (len(index),))
        are_rows = bool(((index >= 0) & (index < size)).all() and (np.diff(index) > 0).all())
        require(are_rows, "final_index: names no rows")
        done = to_array(columns["terminated"] | columns["truncated"])
        require(int(done.sum()) == int(done[index].sum()), "final_obs: lacks the final observation of an episode")
    except ReplayBufferError as error:
        raise ReplayBufferError(f"{name}.{error}") from error
    return Rows(start, stop, columns, index, final_obs)


def _state(ring: Ring, start: Array, stop: Array, columns: dict[str, Any], cells: Array) -> State:
    index = np.flatnonzero(ring.final.slots.reshape(-1)[cells])
    return {
        "start": torch.from_numpy(start),
        "stop": torch.from_numpy(stop),
        "data": dict(named_leaves(columns)),
        "final_index": torch.from_numpy(index),
        "final_obs": dict(named_leaves(ring.final.of(cells[index]))),
    }
