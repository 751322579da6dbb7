"""The state of a replay buffer, in a checkpoint or a file: what is in it, and whether it may be believed."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.data.columns import EXTRA_DTYPES, column_specs, require_extra
from rltrainer.data.incoming_cells import outside_text, to_array
from rltrainer.data.ring import Ring
from rltrainer.data.row_log import RowFile, RowLog, all_rows, read_rows
from rltrainer.data.state_checks import check_tensor, check_tree, require
from rltrainer.data.storage import Array, Rows, numbered
from rltrainer.errors import ReplayBufferError, SpaceError, readable
from rltrainer.files.atomic_write import write_errors
from rltrainer.spaces import ValueRange, check_claims, describe_mismatch, from_plain, leaf_spaces, to_plain
from rltrainer.state.state_file import read_state, write_state
from rltrainer.tree import Tree, map_tree, named_leaves
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


def ring_state(ring: Ring, rows: RowLog | None = None) -> State:
    """Return the state of a ring; `rows` stands for its rows, and else views of them that share the ring's memory."""
    return {
        "written": torch.from_numpy(ring.written.copy()),
        "cut": torch.from_numpy(ring.broken_mask.copy()),
        "head": dict(named_leaves(ring.columns["obs"].gather(torch.from_numpy(ring.heads()).to(ring.device)))),
        "rows": all_rows(ring) if rows is None else rows,
    }


def prepare_ring(ring: Ring, state: State, observation_space: gym.Space[Any], is_finite: bool) -> Load:
    """Check a whole state against the ring it is meant for, and against itself; return what loads it.

    Args:
        ring, state: where it goes, and what was read. Rows that a file of a run holds name that as their "file".
        observation_space: of the buffer.
        is_finite: whether numbers must be, as those of a run are; what somebody stores in a buffer of his own need not.

    Raises:
        ReplayBufferError: something is missing, has another shape or dtype, or contradicts the rest.
    """
    written = written_of(state, ring.num_envs)
    broken_mask = to_array(check_tensor(state, "cut", torch.bool, (ring.num_envs,)))
    head = check_tree(state, "head", ring.specs["obs"], (ring.num_envs,))
    found: Any = state.get("rows")
    require(isinstance(found, list), f"rows: expected a list, found {readable(found)}")
    parts = [read_rows(f"rows.{i}", ring, part) for i, part in enumerate(found)]
    oldest = position = ring.oldest(written)
    has_head = written > 0
    for i, rows in enumerate(parts):
        start, stop = np.maximum(rows.start, oldest), np.maximum(rows.stop, oldest)
        require(
            bool((start == position).all()), f"rows.{i}.start: expected {position.tolist()}, where those before end"
        )
        position = stop
        _check_values(f"rows.{i}.", ring, observation_space, rows, is_finite)
        env, number = numbered(rows.start, rows.stop)
        has_head[env[rows.final_index][number[rows.final_index] + 1 == written[env[rows.final_index]]]] = False
    require(
        bool((position == written).all()), f"rows: expected those up to {written.tolist()}, found {position.tolist()}"
    )
    _check_choices("head", observation_space, map_tree(lambda x: x[torch.from_numpy(has_head)], head))
    if is_finite:
        _check_finite("head", head)
    in_files = itertools.takewhile(lambda i: isinstance(found[i].get("file"), RowFile), range(len(parts)))
    saved = {found[i]["file"]: parts[i].stop for i in in_files}

    def load() -> None:
        ring.restore(written, broken_mask, head, parts)
        ring.saved = saved

    return load


def _check_values(name: str, ring: Ring, observation_space: gym.Space[Any], rows: Rows, is_finite: bool) -> None:
    """Check that actions and observations lie in their spaces, as far as those are choices, and what is finite."""
    action = to_array(rows.columns["action"])
    if not ring.actions.holds(action):
        raise ReplayBufferError(outside_text(f"{name}action", ring.actions, action, ("transition",)))
    _check_choices(f"{name}obs", observation_space, rows.columns["obs"])
    _check_choices(f"{name}final_obs", observation_space, rows.final_obs)
    if is_finite:
        for key, tree in (
            ("obs", rows.columns["obs"]),
            ("reward", rows.columns["reward"]),
            ("final_obs", rows.final_obs),
        ):
            _check_finite(f"{name}{key}", tree)


def _check_finite(name: str, tree: Tree) -> None:
    for leaf_name, leaf in named_leaves(tree):
        require(bool(leaf.isfinite().all()), f"{name}{leaf_name}: holds NaN or infinity")


def _check_choices(name: str, observation_space: gym.Space[Any], obs: Tree) -> None:
    """Check that observations [M, ...] lie in spaces whose values are choices; bounds of a Box are not looked at."""
    stored = dict(named_leaves(obs))
    for path, space in named_leaves(leaf_spaces(observation_space)):
        if isinstance(space, gym.spaces.Box):
            continue
        choices, values = ValueRange(space), to_array(stored[path])
        if not choices.holds(values):
            raise ReplayBufferError(outside_text(f"{name}{path}", choices, values, ("transition",)))


def written_of(state: State, num_envs: int) -> Array:
    """Return how many cells each env ever stored [N].

    Raises:
        ReplayBufferError: the state does not say.
    """
    written = to_array(check_tensor(state, "written", torch.int64, (num_envs,)))
    require(bool(((written >= 0) & (written < 2**62)).all()), "written: must be in [0, 2**62)")
    return written
