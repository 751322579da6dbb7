"""The state of a replay buffer in a checkpoint or a file, and its rows as a log.

Each env numbers its transitions from the first that it ever stored. Once the next one is stored, a transition never
changes, so a file of rows is written once. Each env's newest transition may still turn out to end its trajectory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.data.ring import NewTransitions, Ring, numbered
from rltrainer.data.storage import EXTRA_DTYPES, Array, ExtraDtype, column_specs, outside_text
from rltrainer.errors import CheckpointError, ReplayBufferError, SpaceError, readable
from rltrainer.spaces import Space, ValueRange, check_claims, describe_mismatch
from rltrainer.state.codec import from_state
from rltrainer.state.state_file import read_state
from rltrainer.tree import Tree, leaves, map_tree, named_leaves, rebuild, to_array
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt, Rule

FILE_KIND = "replay_buffer"
# Bytes of a file of rows: the rows of a smaller one are written again with the next ones; more take two files.
MIN_NBYTES, MAX_NBYTES = 2**18, 2**25


def _are_numbers(values: Array) -> bool:
    return values.dtype == np.int64 and values.ndim == 1 and bool(((values >= 0) & (values < 2**62)).all())


Numbers = Annotated[Array, Rule("int64 numbers in [0, 2**62)", _are_numbers)]
Flags = Annotated[Array, Rule("flags", lambda v: v.dtype == np.bool_ and v.ndim == 1)]


@dataclass(kw_only=True)
class SamplingState:
    """State of the sampling of a buffer."""

    generator: Any
    has_own_seed: bool
    sampler: dict[str, Any] | None = None


@dataclass(kw_only=True)
class OfflineState(SamplingState):
    """State of a buffer with the data of a user's file."""

    num_transitions: NonNegativeInt


@dataclass
class RowsState:
    """M transitions in the order of `numbered`."""

    # [N]: each env's first number, and the number after its last.
    start: Numbers
    stop: Numbers
    # The columns' tensors [M, ...], by path.
    data: dict[str, Any]
    # Rows that end a trajectory [K], ascending, and their successors [K, ...], by path.
    final_index: Numbers
    final_obs: dict[str, Any]
    # The `RowFile` that holds them, if there is one.
    file: Any = None


@dataclass
class ExtraColumn:
    """Shape and dtype of a declared extra."""

    shape: list[NonNegativeInt]
    dtype: ExtraDtype

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype) -> "ExtraColumn":
        """Name the dtype."""
        return cls(list(shape), str(dtype).removeprefix("torch."))  # type: ignore[arg-type]  # an `ExtraDtype`

    def __repr__(self) -> str:
        """Return it as a buffer's argument."""
        return f"({tuple(self.shape)}, torch.{self.dtype})"


@dataclass(kw_only=True)
class BufferLayout:
    """Spaces, sizes and extras of a buffer."""

    observation_space: Space
    action_space: Space
    capacity: PositiveInt
    num_envs: PositiveInt
    extra: dict[str, ExtraColumn]
    frame_stack: PositiveInt | None = None

    def arguments(self) -> dict[str, Any]:
        """Return a buffer's arguments but for its size."""
        extra = {name: (tuple(each.shape), EXTRA_DTYPES[each.dtype]) for name, each in self.extra.items()}
        spaces = {"observation_space": self.observation_space, "action_space": self.action_space}
        return {**spaces, "extra": extra, **({} if self.frame_stack is None else {"frame_stack": self.frame_stack})}

    def mismatch(self, other: "BufferLayout", *, with_size: bool = False) -> str | None:
        """Return a sentence if transitions of the other layout do not fit into this one, else None."""
        for name in (["capacity", "num_envs"] if with_size else []) + ["extra", "frame_stack"]:
            if getattr(self, name) != getattr(other, name):
                return f"{name}: expected {getattr(self, name)}, found {getattr(other, name)}"
        obs = describe_mismatch("observation_space", self.observation_space, other.observation_space)
        return obs or describe_mismatch("action_space", self.action_space, other.action_space, with_bounds=True)


@dataclass(kw_only=True)
class BufferState(BufferLayout, SamplingState):
    """State of a replay buffer."""

    written: Numbers
    pending_end: Flags
    head: dict[str, Any]
    rows: list[RowsState]

    def problem(self) -> str | None:
        """Return the contradiction between the fields, or None."""
        for name, values in (("written", self.written), ("pending_end", self.pending_end)):
            if len(values) != self.num_envs:
                return f"{name}: expected {self.num_envs} values, found {len(values)}"
        if self.capacity % self.num_envs:
            return f"capacity: must be a multiple of num_envs={self.num_envs}; got {self.capacity}"
        shape = self.observation_space.shape if isinstance(self.observation_space, gym.spaces.Box) else ()
        if self.frame_stack is not None and shape[:1] != (self.frame_stack,):
            return f"frame_stack: must be the number of frames of {self.observation_space}; got {self.frame_stack!r}"
        return None


@dataclass(kw_only=True)
class MixedState(BufferState):
    """State of a mixed buffer: the online buffer's state, and the offline buffer's sampling."""

    offline: OfflineState


def decoded(cls: type[BufferState], state: object, num_bytes: int) -> BufferState:
    """Return a state as its dataclass; a space of far more numbers than `num_bytes` of file or buffer is not made.

    Raises:
        ReplayBufferError: a field is missing, unknown, or breaks its rule.
    """
    try:
        check_claims(state, num_bytes)
        found = from_state(cls, state, "buffer")
        check_claims([{"space": "Box", "shape": each.shape} for each in found.extra.values()], num_bytes)
        column_specs("ReplayBuffer", found.observation_space, found.action_space, found.arguments()["extra"])
    except (CheckpointError, SpaceError) as error:
        raise ReplayBufferError(str(error)) from error
    return found


def read_buffer(path: Path) -> BufferState:
    """Read a file; a `ReplayBufferError` that names it if it is damaged or no buffer."""
    state = read_state(path, FILE_KIND, ReplayBufferError, mapped=True)
    try:
        return decoded(BufferState, state, path.stat().st_size)
    except ReplayBufferError as error:
        raise ReplayBufferError(f"{path}: {error}") from error


def ring_state(ring: Ring, rows: "list[State] | RowLog") -> State:
    """Return the state of a ring, with its rows or a log of them."""
    head = ring.columns["obs"].gather(ring.on_device(ring.heads()))
    return {
        "written": torch.from_numpy(ring.written.copy()),
        "pending_end": torch.from_numpy(ring.pending_end.copy()),
        "head": dict(named_leaves(head)),
        "rows": rows,
    }


def prepare_ring(ring: Ring, state: BufferState, is_finite: bool) -> Load:
    """Check a state of the same layout against ring and itself; return the function that loads it.

    `is_finite`: numbers must be finite, as in a run; a user's own buffer may hold others.

    Raises:
        ReplayBufferError: the state is of other rows, contradicts itself, or holds a value that does not fit.
    """
    written = state.written
    head = _tree("head", state.head, ring.specs["obs"], ring.num_envs)
    oldest = position = ring.oldest(written)
    has_head = written > 0
    parts = []
    for i, rows in enumerate(state.rows):
        new = _check_rows(f"rows.{i}", ring, rows, is_finite)
        text = f"rows.{i}.start: expected {position.tolist()}, where those before end"
        require(bool((np.maximum(rows.start, oldest) == position).all()), text)
        position = np.maximum(rows.stop, oldest)
        env, number = numbered(rows.start, rows.stop)
        has_head[env[new.ended][number[new.ended] + 1 == written[env[new.ended]]]] = False
        new.last_obs = head
        parts.append((rows.start, new))
    text = f"rows: expected those up to {written.tolist()}, found {position.tolist()}"
    require(bool((position == written).all()), text)
    # If an env is empty, or its newest trajectory has ended, its head may be any finite row.
    _check_values("head", ring.specs["obs"], head, is_finite, torch.from_numpy(has_head))
    saved = {rows.file: rows.stop for rows in takewhile(lambda rows: isinstance(rows.file, RowFile), state.rows)}
    return partial(ring.restore, written, state.pending_end, head, parts, saved)


def _check_rows(name: str, ring: Ring, rows: RowsState, is_finite: bool) -> NewTransitions:
    """Check rows against the ring that they are meant for, and against themselves."""
    try:
        is_range = len(rows.start) == len(rows.stop) == ring.num_envs and bool((rows.start <= rows.stop).all())
        # The size is compared before anything of it is made: a damaged file may claim any.
        require(is_range and float((rows.stop - rows.start).sum(dtype=np.float64)) < 2**53, "start, stop: no ranges")
        columns = _tree("data", rows.data, ring.specs, int((rows.stop - rows.start).sum()))
        env, index = numbered(rows.start, rows.stop)[0], rows.final_index
        final_obs = _tree("final_obs", rows.final_obs, ring.specs["obs"], len(index))
        require(bool((index < len(env)).all() and (np.diff(index) > 0).all()), "final_index: names no rows")
        ended = np.isin(np.arange(len(env)), index)
        done = to_array(columns["terminated"] | columns["truncated"])
        require(not (done & ~ended).any(), "final_obs: lacks the final observation of an episode")
        _check_values("action", ring.specs["action"], columns["action"], is_finite=False)
        _check_values("obs", ring.specs["obs"], columns["obs"], is_finite)
        _check_values("final_obs", ring.specs["obs"], final_obs, is_finite)
        _check_values("reward", ring.specs["reward"], columns["reward"], is_finite)
    except ReplayBufferError as error:
        raise ReplayBufferError(f"{name}.{error}") from error
    return NewTransitions(columns, None, env, ended, final_obs, final_obs)


def _tree(name: str, state: dict[str, Any], specs: Tree, size: int) -> Tree:
    """Return the tree of tensors [size, ...] that a state holds by path, if it has the form of the specs."""
    expected = dict(named_leaves(specs))
    require(state.keys() == expected.keys(), f"{name}: expected the leaves {list(expected)}, found {list(state)}")
    for path, spec in expected.items():
        value = state[path]
        found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else readable(value)
        wanted = f"{spec.dtype} {(size, *spec.shape)}"
        require(found == wanted, f"{name}{path}: expected {wanted}, found {found}")
    return rebuild(specs, [state[path] for path in expected])


def require(condition: bool, text: str) -> None:
    """Raise a `ReplayBufferError` with this text unless the condition holds."""
    if not condition:
        raise ReplayBufferError(text)


def _check_values(name: str, specs: Tree, tree: Tree, is_finite: bool, where: Tensor | None = None) -> None:
    """Check that values [M, ...] are finite, and in their spaces `where` [M] there are any."""
    for (path, leaf), spec in zip(named_leaves(tree), leaves(specs), strict=True):
        require(not is_finite or bool(leaf.isfinite().all()), f"{name}{path}: holds NaN or infinity")
        # Only actions must lie within the bounds of a Box.
        if spec.space is not None and (name == "action" or not isinstance(spec.space, gym.spaces.Box)):
            inside, values = ValueRange(spec.space), to_array(leaf if where is None else leaf[where])
            text = "" if inside.holds(values) else outside_text(f"{name}{path}", inside, values, ("transition",))
            require(not text, text)


# Rows.


@dataclass(frozen=True)
class RowFile:
    """A file that holds rows: its name, its size in bytes, and its SHA-256 in hex."""

    name: str
    size: int
    sha256: str


class RowLog:
    """The rows of a ring for a save: the ones in files already, and new ones."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._settled = np.maximum(ring.written - 1, 0)
        self._oldest = ring.oldest(ring.written)

    def kept(self, is_there: Callable[[RowFile], bool]) -> dict[RowFile, Array]:
        """Return the files that the next one continues, and up to which number each goes [N], if all are there."""
        files = {file: stop for file, stop in self._ring.saved.items() if (stop > self._oldest).any()}
        if not all(map(is_there, files)):
            return {}
        while files and next(reversed(files)).size < MIN_NBYTES:
            files.popitem()
        return files

    def new(self, kept: dict[RowFile, Array]) -> Iterator[tuple[State, Array, Array]]:
        """Yield the rows missing in these files: the contents of each new file, its first numbers [N] and its ends [N].

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
        """Note which files hold all rows but the newest, and up to which number each goes [N]."""
        self._ring.saved = files


def rows_between(ring: Ring, start: Array, stop: Array) -> State:
    """Return copies of the rows of a ring from one number of each env up to another [N] each."""
    env, number = numbered(start, stop)
    slots = number % ring.num_rows * ring.num_envs + env
    columns = {name: column.gather(ring.on_device(slots)) for name, column in ring.columns.items()}
    return _rows_state(ring, start, stop, columns, slots)


def all_rows(ring: Ring) -> list[State]:
    """Return all rows of a ring as views: all envs at once if they are in step, else env by env."""
    written, position = ring.written, ring.oldest(ring.written)
    width = ring.num_envs if (written == written[0]).all() else 1
    found = []
    for envs in (slice(env, env + width) for env in range(0, ring.num_envs, width)):
        while (first := int(position[envs.start])) < written[envs.start]:
            row = first % ring.num_rows
            stop = min(row + int(written[envs.start]) - first, ring.num_rows)  # up to where the memory starts again
            start = position.copy()
            position[envs] += stop - row
            views = {name: column.rows(stop, row) for name, column in ring.columns.items()}
            # [rows, N] of all envs flattens to a view; of one env, too.
            columns = map_tree(lambda x, envs=envs: x[:, envs].flatten(0, 1), views)
            slots = (np.arange(row, stop)[:, None] * ring.num_envs + np.arange(ring.num_envs)[envs]).reshape(-1)
            found.append(_rows_state(ring, start, position.copy(), columns, slots))
    return found


def _rows_state(ring: Ring, start: Array, stop: Array, columns: dict[str, Any], slots: Array) -> State:
    index = np.flatnonzero(ring.final.index.reshape(-1)[slots])
    return {
        "start": torch.from_numpy(start),
        "stop": torch.from_numpy(stop),
        "data": dict(named_leaves(columns)),
        "final_index": torch.from_numpy(index),
        "final_obs": dict(named_leaves(ring.final.of(slots[index]))),
    }
