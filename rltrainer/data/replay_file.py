"""The state of a replay buffer, in a checkpoint or a file: what is in it, and whether it may be believed."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.atomic_write import write_errors
from rltrainer.data.columns import EXTRA_DTYPES, column_specs, require_extra
from rltrainer.data.incoming_cells import outside_text, to_array
from rltrainer.data.ring import Ring
from rltrainer.data.state_checks import check_tensor, check_tree, require
from rltrainer.data.storage import Array, SavedRows
from rltrainer.errors import ReplayBufferError, SpaceError, readable
from rltrainer.spaces import ValueRange, check_claims, describe_mismatch, from_plain, leaf_spaces, to_plain
from rltrainer.state_file import read_state, write_state
from rltrainer.tree import Tree, named_leaves
from rltrainer.types import Load, State

FILE_KIND = "replay_buffer"


@dataclass(frozen=True)
class Layout:
    """Spaces, sizes and columns that a buffer was made for; `capacity` is a multiple of `num_envs`."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    capacity: int
    num_envs: int
    extra: dict[str, tuple[tuple[int, ...], torch.dtype]]
    frame_stack: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Return what a buffer's constructor takes, its size aside."""
        arguments = {name: getattr(self, name) for name in ("observation_space", "action_space", "extra")}
        return arguments | ({} if self.frame_stack is None else {"frame_stack": self.frame_stack})

    def to_state(self) -> State:
        """Return the layout as plain values."""
        return {
            "observation_space": to_plain(self.observation_space),
            "action_space": to_plain(self.action_space),
            "capacity": self.capacity,
            "num_envs": self.num_envs,
            "extra": {
                name: {"shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
                for name, (shape, dtype) in self.extra.items()
            },
            **({} if self.frame_stack is None else {"frame_stack": self.frame_stack}),
        }

    @classmethod
    def of_state(cls, state: State, num_bytes: int) -> "Layout":
        """Read a layout.

        Args:
            state: what was read.
            num_bytes: of the file, or of the buffer that it is meant for: spaces have not many more numbers.

        Raises:
            ReplayBufferError: the state does not describe one.
        """
        try:
            check_claims([state["observation_space"], state["action_space"]], num_bytes)
            spaces = (from_plain(state["observation_space"]), from_plain(state["action_space"]))
            counts = (state["capacity"], state["num_envs"])
            declared = {
                name: (tuple(each["shape"]), EXTRA_DTYPES[each["dtype"]]) for name, each in state["extra"].items()
            }
            check_claims([{**each, "space": "Box"} for each in state["extra"].values()], num_bytes)
            extra = require_extra("ReplayBuffer", declared)
            column_specs("ReplayBuffer", *spaces, extra)
        except (SpaceError, LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            raise ReplayBufferError(f"not the state of a replay buffer ({type(error).__name__}: {error})") from error
        for count in counts:
            require(type(count) is int and count > 0, f"capacity and num_envs: must be positive integers; got {counts}")
        require(counts[0] % counts[1] == 0, f"capacity: must be a multiple of num_envs={counts[1]}; got {counts[0]}")
        frame_stack = state.get("frame_stack")
        if frame_stack is not None:
            shape = spaces[0].shape if isinstance(spaces[0], gym.spaces.Box) else ()
            text = f"frame_stack: must be how many frames {spaces[0]} has along its first axis; got {frame_stack!r}"
            require(type(frame_stack) is int and shape[:1] == (frame_stack,), text)
        return cls(*spaces, *counts, extra, frame_stack)

    def mismatch(self, other: "Layout", *, with_size: bool = False) -> str | None:
        """Return a sentence if transitions of the other layout do not fit into this one, else None."""
        for name in (["capacity", "num_envs"] if with_size else []) + ["extra", "frame_stack"]:
            if getattr(self, name) != getattr(other, name):
                return f"{name}: expected {getattr(self, name)}, found {getattr(other, name)}"
        obs = describe_mismatch("observation_space", self.observation_space, other.observation_space)
        return obs or describe_mismatch("action_space", self.action_space, other.action_space, with_bounds=True)


def write_buffer(path: str | Path, state: State) -> None:
    """Write a buffer's state to a file; whoever loads it goes on with other episodes.

    Raises:
        ReplayBufferError: it could not be written; what was there is unchanged.
    """
    with write_errors(Path(path), ReplayBufferError):
        write_state(path, FILE_KIND, state | {"cut": torch.ones_like(state["cut"])})


def read_layout(path: str | Path) -> tuple[State, Layout, Layout]:
    """Read a file.

    Returns:
        its state, its layout, and the smallest one that holds the state just as well: rings that never wrapped can be
        shorter.

    Raises:
        ReplayBufferError: it is missing, damaged, or no replay buffer.
    """
    state = read_state(path, FILE_KIND, ReplayBufferError, mapped=True)
    try:
        layout = Layout.of_state(state, Path(path).stat().st_size)
        longest = max(int(written_of(state, layout.num_envs).max()), 1)
    except ReplayBufferError as error:
        raise ReplayBufferError(f"{path}: {error}") from error
    return state, layout, replace(layout, capacity=min(layout.capacity, longest * layout.num_envs))


def ring_state(ring: Ring, in_blocks: bool = False) -> State:
    """Return the state of a ring; its tensors share the ring's memory where they can. Unfilled rows are left out.

    Args:
        ring: whose state.
        in_blocks: whether its rows are blocks, which are copied when they are saved.
    """
    position = {"written": torch.from_numpy(ring.written.copy()), "cut": torch.from_numpy(ring.broken_mask.copy())}
    if in_blocks:
        return {"blocks": RingBlocks(ring)} | position
    rows = {name: column.rows(ring.num_used_rows) for name, column in ring.columns.items()}
    final_index = ring.final.cells()
    return {
        "data": dict(named_leaves(rows)),
        "final_index": torch.from_numpy(final_index),
        "final_obs": dict(named_leaves(ring.final.of(final_index))),
        **position,
    }


def prepare_ring(ring: Ring, state: State, observation_space: gym.Space[Any], is_finite: bool) -> Load:
    """Check a whole state against the ring it is meant for, and against itself; return what loads it.

    Args:
        ring, state: where it goes, and what was read.
        observation_space: of the buffer.
        is_finite: whether numbers must be, as those of a run are; what somebody stores in a buffer of his own need not.

    Raises:
        ReplayBufferError: something is missing, has another shape or dtype, or contradicts the rest.
    """
    written, num_envs = written_of(state, ring.num_envs), ring.num_envs
    broken_mask = to_array(check_tensor(state, "cut", torch.bool, (num_envs,)))
    num_rows = min(int(written.max()) + 1, ring.num_rows)
    is_stored = np.zeros(num_rows * num_envs, np.bool_)
    is_stored[to_array(ring.stored_cells(written))] = True
    blocks = [
        _checked_rows(name, ring, part, rows, is_stored[rows.start * num_envs : rows.stop * num_envs])
        for name, part, rows in _parts(state, num_rows)
    ]
    is_known = is_stored
    heads = (written % ring.num_rows * num_envs + np.arange(num_envs))[written > 0]
    ends = np.concatenate([block.final_index for block in blocks])
    is_known[np.setdiff1d(heads, (ends + num_envs) % ring.num_cells)] = True
    for (name, _, rows), block in zip(_parts(state, num_rows), blocks, strict=True):
        known = is_known[rows.start * num_envs : rows.stop * num_envs]
        _check_choices(name, observation_space, block.columns["obs"], known, block.final)
        numbers = {"obs": block.columns["obs"], "reward": block.columns["reward"], "final_obs": block.final}
        for leaf_name, leaf in named_leaves(numbers) if is_finite else ():
            require(bool(leaf.isfinite().all()), f"{name}{leaf_name}: holds NaN or infinity")
    return lambda: ring.restore(written, broken_mask, blocks)


def _parts(state: State, num_rows: int) -> list[tuple[str, State, range]]:
    """Return the name, the state and the rows of each block, or of the whole."""
    if "blocks" not in state:
        return [("", state, range(num_rows))]
    found = state["blocks"]
    is_list = isinstance(found, list) and len(found) > 0 and all(isinstance(block, dict) for block in found)
    require(is_list, f"blocks: expected states of rows, found {readable(found)}")
    size = num_rows if len(found) == 1 else _num_rows(found[0])
    rows = [range(start, min(start + size, num_rows)) for start in range(0, num_rows, max(size, 1))]
    require(len(rows) == len(found), f"blocks: expected {len(rows)} of {size} rows, found {len(found)}")
    return [(f"blocks.{i}.", *each) for i, each in enumerate(zip(found, rows, strict=True))]


def _num_rows(block: State) -> int:
    data = block.get("data")
    columns = list(data.values()) if isinstance(data, dict) else []
    return len(columns[0]) if columns and isinstance(columns[0], torch.Tensor) and columns[0].ndim else 0


def _checked_rows(name: str, ring: Ring, state: State, rows: range, is_stored: Array) -> SavedRows:
    """Check the state of some rows; `is_stored` says which of their cells hold transitions."""
    try:
        columns = check_tree(state, "data", ring.specs, (len(rows), ring.num_envs))
        index = to_array(check_tensor(state, "final_index", torch.int64, None))
        final = check_tree(state, "final_obs", ring.specs["obs"], (len(index),))
    except ReplayBufferError as error:
        raise ReplayBufferError(f"{name}{error}") from error
    in_range = ((index >= 0) & (index < is_stored.size)).all()
    are_cells = bool(in_range and (np.diff(index) > 0).all() and is_stored[index].all())
    require(are_cells, f"{name}final_index: names no cells")
    done = to_array(columns["terminated"] | columns["truncated"]).reshape(-1)
    done[index] = False
    require(not (done & is_stored).any(), f"{name}final_obs: lacks the final observation of an episode")
    action = to_array(columns["action"]).reshape(is_stored.size, *columns["action"].shape[2:])[is_stored]
    if not ring.actions.holds(action):
        raise ReplayBufferError(outside_text(f"{name}action", ring.actions, action, ("transition",)))
    return SavedRows(rows.start, rows.stop, columns, index + rows.start * ring.num_envs, final)


def _check_choices(owner: str, observation_space: gym.Space[Any], obs: Tree, is_known: Array, final: Tree) -> None:
    """Check that observations lie in those spaces whose values are choices; bounds of a Box are not looked at.

    Args:
        owner: what errors begin with.
        observation_space: of one env.
        obs, final: trees of tensors [rows, N, ...] and [K, ...].
        is_known: [rows * N] bool, which of the cells hold an observation.
    """
    stored, ends = dict(named_leaves(obs)), dict(named_leaves(final))
    for path, space in named_leaves(leaf_spaces(observation_space)):
        if isinstance(space, gym.spaces.Box):
            continue
        choices = ValueRange(space)
        cells = to_array(stored[path]).reshape(is_known.size, *stored[path].shape[2:])[is_known]
        for name, values in (("obs", cells), ("final_obs", to_array(ends[path]))):
            if not choices.holds(values):
                raise ReplayBufferError(outside_text(f"{owner}{name}{path}", choices, values, ("transition",)))


def written_of(state: State, num_envs: int) -> Array:
    """Return how many cells each env ever stored [N].

    Raises:
        ReplayBufferError: the state does not say.
    """
    written = to_array(check_tensor(state, "written", torch.int64, (num_envs,)))
    require(bool(((written >= 0) & (written < 2**62)).all()), "written: must be in [0, 2**62)")
    return written


NUM_BLOCKS = 256
"""Blocks of a full ring, between those sizes."""
MIN_NBYTES, MAX_NBYTES = 2**18, 2**25
"""Bytes of a block: a smaller one is not worth a file, a larger one not worth the memory of its copy."""


@dataclass(frozen=True)
class Mark:
    """The contents of a ring at some moment, told by how much had been written."""

    era: object
    written: Array


class RingBlocks:
    """The present contents of a ring, in blocks of rows; see `SavedBlocks`.

    A block is `{"data": columns [rows, N, ...], "final_index": [K], "final_obs": [K, ...]}`: the rows, and of the cells
    in them where a trace ends, flat indices counted from the block's first cell, and successors.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.mark = Mark(ring.final.era, ring.written.copy())
        self._size = rows_per_block(ring)
        self._num_rows = ring.num_used_rows
        self._waiting: set[int] = set()
        self._copies: dict[int, State] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many blocks hold the rows that were ever written."""
        return -(-self._num_rows // self._size)

    def changed_since(self, mark: object | None) -> list[int]:
        """Return the blocks that were written since, first those that are overwritten first."""
        if isinstance(mark, Mark) and mark.era is self.mark.era:
            changed = self._touched(mark.written, self.mark.written)
        else:
            changed = np.arange(len(self))
        head = int(self.mark.written.max()) % self._ring.num_rows // self._size
        return sorted(changed.tolist(), key=lambda block: (block - head) % len(self))

    def hold(self, blocks: Sequence[int]) -> None:
        """Keep what these blocks hold now.

        Those of a device are copied at once: its other streams and graphs are not to wait for a thread.
        """
        self._waiting = set(blocks)
        if self._ring.device.type != "cpu" or self._ring.before_write is not None:
            self._copy(blocks)
        elif self._waiting:
            self._ring.before_write = self._copy_before_write

    def take(self, block: int) -> State:
        """Return the contents of a block that is held, once."""
        self._copy([block])
        return self._copies.pop(block)

    def release(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self._waiting.clear()
            self._copies.clear()
            self._let_go()

    def _copy_before_write(self, count: int) -> None:
        """Copy what waits in the blocks that the ring's next `count` cells of each env change."""
        self._copy(self._touched(self._ring.written, self._ring.written + count).tolist())

    def _touched(self, start: Array, stop: Array) -> Array:
        """Return the blocks that change while the number of cells that each env ever stored [N] grows so far.

        They are those of the cell before, whose trace may be broken, up to the head, which holds the last successor.
        """
        size, num_rows = self._size, self._ring.num_rows
        first = np.maximum(np.maximum(start - 1, 0), stop + 1 - num_rows)  # beyond one round all rows are new
        row = first % num_rows
        end = row + stop - first
        num_blocks = -(-num_rows // size)
        edges = np.zeros(2 * num_blocks + 1, np.int64)  # of two rounds, as rows go on after the last at the first
        np.add.at(edges, row // size, 1)
        np.add.at(edges, np.where(end < num_rows, end // size, num_blocks + (end - num_rows) // size) + 1, -1)
        inside = edges.cumsum()[:-1].reshape(2, num_blocks)
        return np.flatnonzero(inside.sum(0)[: len(self)])

    def _copy(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            with self._lock:
                if block in self._waiting:
                    self._copies[block] = self._contents(block)
                    self._waiting.remove(block)
                    if not self._waiting:
                        self._let_go()

    def _let_go(self) -> None:
        if self._ring.before_write == self._copy_before_write:
            self._ring.before_write = None

    def _contents(self, block: int) -> State:
        ring, start = self._ring, block * self._size
        stop = min(start + self._size, self._num_rows)
        rows = {name: column.rows(stop, start) for name, column in ring.columns.items()}
        index = np.flatnonzero(ring.final.slots[start:stop])
        final_obs = ring.final.of(index + start * ring.num_envs)
        return {
            "data": {path: _host_copy(leaf) for path, leaf in named_leaves(rows)},
            "final_index": torch.from_numpy(index),
            "final_obs": {path: leaf.cpu() for path, leaf in named_leaves(final_obs)},
        }


def rows_per_block(ring: Ring) -> int:
    """Return how many rows of a ring make a block; the same for rings of one layout."""
    row_nbytes = max(sum(column.nbytes for column in ring.columns.values()) // ring.num_rows, 1)
    nbytes = min(max(row_nbytes * ring.num_rows // NUM_BLOCKS, MIN_NBYTES), MAX_NBYTES)
    return min(max(-(-nbytes // row_nbytes), 1), ring.num_rows)


def _host_copy(values: Tensor) -> Tensor:
    # By NumPy: torch would copy in threads, of which the thread that writes has none yet.
    return values.cpu() if values.device.type != "cpu" else torch.from_numpy(values.numpy().copy())
