"""The rollout buffer: what one collection step gathers, in time order."""

from operator import is_not
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.data.columns import Extra, cell_nbytes, column_specs, require_device, require_extra
from rltrainer.data.incoming_cells import to_array
from rltrainer.data.memory_forecast import check_fits
from rltrainer.data.row_writer import RowWriter
from rltrainer.data.storage import Array, Spec, Storage, matching_leaves
from rltrainer.errors import ReplayBufferError
from rltrainer.spaces import ValueRange
from rltrainer.tree import Tree, map_tree
from rltrainer.types import Rollout
from rltrainer.validation.field_rules import PositiveInt, checked


class RolloutBuffer:
    """Gathers steps of all envs [T, N]; grows if more come than it was made for.

    Each observation is held once, as in a `Rollout`: `rollout()` copies nothing.

    Args:
        num_steps: steps of each env to reserve memory for.
        num_envs: N.
        observation_space, action_space, device, extra: see `ReplayBuffer`, for what is raised too.

    Attributes:
        num_rows: steps of all envs since the last `clear`.
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        device: torch.device | str = "cpu",
        extra: Extra | None = None,
    ) -> None:
        num_steps = checked("RolloutBuffer", "num_steps", num_steps, PositiveInt)
        num_envs = checked("RolloutBuffer", "num_envs", num_envs, PositiveInt)
        self.device = require_device("RolloutBuffer", device)
        self.extra = require_extra("RolloutBuffer", extra)
        self.observation_space, self.action_space, self.num_envs = observation_space, action_space, num_envs
        specs = column_specs("RolloutBuffer", observation_space, action_space, self.extra)
        specs["valid"] = Spec((), torch.bool)
        shape = (num_steps + 1, num_envs)  # the spare row is the last one's successor
        needed = shape[0] * num_envs * cell_nbytes(specs)
        check_fits("RolloutBuffer", "num_steps", num_steps, needed, self.device)
        self._columns = {
            name: Storage(f"RolloutBuffer.{name}", part, shape, self.device) for name, part in specs.items()
        }
        self._valid = self._columns["valid"].leaves[0]
        self._writer = RowWriter(self._columns)
        self._final_obs = Storage("RolloutBuffer.final_obs", specs["obs"], (16,), self.device)
        self._final_index: list[int] = []
        self.num_rows, self._has_invalid = 0, False
        self._is_ragged = False  # whether cells came by `add_cells`
        self._lengths = np.zeros(num_envs, np.int64)  # how many of each env did
        self._first_row: tuple[Any, ...] | None = None
        self._views: tuple[tuple[int, int], tuple[Tensor, Tensor], tuple[dict[str, Tree], dict[str, Tree]]] | None = (
            None
        )
        self._starts = np.ones(num_envs, np.bool_)
        self._stream: object | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle without views: those of a copy are of the copy's memory."""
        return vars(self) | {"_first_row": None, "_views": None}

    @property
    def nbytes(self) -> int:
        """Bytes reserved for the data."""
        return sum(column.nbytes for column in self._columns.values()) + self._final_obs.nbytes

    def __len__(self) -> int:
        """Return how many valid cells it holds."""
        return int(self._valid.tensor[: self.num_rows].sum())

    def add(
        self,
        obs: Tree,
        action: Any,
        reward: Any,
        next_obs: Tree,
        terminated: Any,
        truncated: Any,
        valid: Any = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Store one step of all envs; each leaf is an array or tensor [N, ...].

        Args:
            obs, reward, next_obs, terminated, truncated, extra: see `ReplayBuffer.add`.
            action: as sampled.
            valid: [N] bool; None says that all are.

        Raises:
            ReplayBufferError: a leaf is missing, or has another shape or kind of number; nothing is stored.
        """
        row = self.num_rows
        if row + 1 == self._columns["obs"].shape[0]:
            self._grow()
        terminated, truncated = to_array(terminated), to_array(truncated)
        accepted = True if valid is None else self._valid.accept(valid)
        self._writer.write((row, row + 1), obs, action, reward, next_obs, terminated, truncated, extra)
        self._valid.target[row] = accepted
        self._has_invalid |= valid is not None
        self.num_rows += 1
        if np.count_nonzero(terminated) or np.count_nonzero(truncated):
            self._end(np.flatnonzero(terminated | truncated), row)

    def add_cells(
        self,
        envs: Array,
        obs: Tree,
        action: Any,
        reward: Any,
        next_obs: Tree,
        terminated: Array,
        truncated: Array,
        valid: Array,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Store the next cell of some envs [K], no env twice; each leaf is an array or tensor [K, ...].

        Envs may take different numbers of steps: call `level` before the rollout is looked at. Between two `clear`,
        either this or `add` is called.

        Raises:
            ReplayBufferError: a leaf is missing, or has another shape or kind of number.
        """
        rows = self._lengths[envs]
        while int(rows.max()) + 1 >= self._columns["obs"].shape[0]:
            self._grow()
        columns, num_cells = self._columns, len(envs)
        cells: list[tuple[str, Array, Any]] = [("obs", rows, obs), ("action", rows, action), ("reward", rows, reward)]
        cells += [("terminated", rows, terminated), ("truncated", rows, truncated), ("valid", rows, valid)]
        cells += [("extra", rows, extra or {}), ("obs", rows + 1, next_obs)]
        for name, at, value in cells:
            values = matching_leaves(columns[name].specs, value, columns[name].name)
            for leaf, (_, part) in zip(columns[name].leaves, values, strict=True):
                leaf.target[at, envs] = leaf.accept(part, (num_cells, *leaf.spec.shape))
        self._lengths[envs] += 1
        self._is_ragged = self._has_invalid = True
        self.num_rows = max(self.num_rows, int(self._lengths.max()))
        done = terminated | truncated
        if np.count_nonzero(done):
            self._end(envs[done], rows[done])

    def level(self, obs: Tree) -> None:
        """Let envs with fewer cells than others hold still in the rest of them, which are not valid.

        Without any cell, all envs do so in one row: there is always a rollout.

        Args:
            obs: what each env saw last [N, ...].
        """
        self._is_ragged = self._has_invalid = True
        self.num_rows = num_rows = max(self.num_rows, 1)
        columns = self._columns
        short = np.flatnonzero(self._lengths < num_rows)
        rest = np.arange(num_rows)[:, None] >= self._lengths
        for name in ("reward", "terminated", "truncated", "valid", "extra"):
            for leaf in columns[name].leaves:
                leaf.target[:num_rows][rest] = 0
        for leaf in columns["action"].leaves:  # any action will do, but it must be one
            leaf.target[:num_rows][rest] = leaf.target[0, int(self._lengths.argmax())]
        seen = matching_leaves(columns["obs"].specs, obs, columns["obs"].name)
        for leaf, (_, values) in zip(columns["obs"].leaves, seen, strict=True):
            last = leaf.accept(values)
            for n in short.tolist():
                leaf.target[self._lengths[n] : num_rows + 1, n] = last[n]

    def end_trajectory(self, envs: Array | None = None) -> None:
        """End the traces; see `ReplayBuffer.end_trajectory`."""
        if self.num_rows:
            first = (self.num_rows - 1) * self.num_envs
            ended = np.isin(first + np.arange(self.num_envs), self._final_index)
            self._end(np.flatnonzero(~ended if envs is None else ~ended & envs), self.num_rows - 1)

    def begin(self, stream: object) -> None:
        """Forget all steps; what is stored next continues them if they were of the same stream."""
        self.clear()
        if stream is not self._stream:
            self._starts[:] = True
            self._stream = stream

    def is_of(self, stream: object) -> bool:
        """Return whether the last steps were of this stream."""
        return stream is self._stream

    def go_on(self, stream: object, broken: Array) -> None:
        """Take what comes next for the continuation of a stream, but in some envs [K], whose traces are broken."""
        self.clear()
        self._stream, self._starts[:] = stream, False
        self._starts[broken] = True

    def clear(self) -> None:
        """Forget all steps; what is stored next continues them.

        The memory is kept: later steps overwrite rollouts that were handed out.
        """
        if self._is_ragged:
            self._starts[self._lengths > 0] = False
        elif self.num_rows:
            self._starts.fill(False)
        self._lengths.fill(0)
        self.num_rows, self._has_invalid, self._is_ragged = 0, False, False
        self._final_index.clear()

    def hold(self, rollout: Rollout) -> None:
        """Hold a rollout that was gathered elsewhere, in the place of what is held.

        Raises:
            ReplayBufferError: it has other envs, shapes or extras; nothing is changed.
        """
        num_rows, num_final = len(rollout.reward), len(rollout.final_index)
        columns = {name: map_tree(lambda x: x.flatten(0, 1), getattr(rollout, name)) for name in self._columns}
        for name, column in self._columns.items():
            column.check(columns[name])
        for obs in (rollout.last_obs, rollout.final_obs):
            self._final_obs.check(obs)
        if rollout.reward.shape[1] != self.num_envs:
            text = f"expected a rollout of {self.num_envs} envs, got one of {rollout.reward.shape[1]}"
            raise ReplayBufferError(f"RolloutBuffer.hold: {text}")
        if num_rows + 1 > self._columns["obs"].shape[0]:
            self._reserve(num_rows + 1)
        if num_final > self._final_obs.shape[0]:
            self._final_obs.grow(num_final)
        for name, column in self._columns.items():
            map_tree(lambda mine, new: mine.copy_(new), column.rows(num_rows), getattr(rollout, name))
        last_row = map_tree(lambda x: x[-1], self._columns["obs"].rows(num_rows + 1))
        map_tree(lambda mine, new: mine.copy_(new), last_row, rollout.last_obs)
        map_tree(lambda mine, new: mine.copy_(new), self._final_obs.rows(num_final), rollout.final_obs)
        self._final_index = rollout.final_index.tolist()
        self._starts[:] = to_array(rollout.starts)
        self.num_rows, self._has_invalid = num_rows, not bool(rollout.valid.all())

    def is_finite(self) -> bool:
        """Return whether all numbers are finite, also those of cells that are not valid."""
        num_rows, columns = self.num_rows, self._columns
        parts = [(columns["obs"], num_rows + 1), (columns["action"], num_rows), (columns["reward"], num_rows)]
        if self._final_index:
            parts.append((self._final_obs, len(self._final_index)))
        return all([leaf.is_finite(count) for column, count in parts for leaf in column.leaves])

    def holds_choices(self, actions: ValueRange) -> bool:
        """Return whether all actions lie in their space, also those of cells that are not valid."""
        return actions.holds(to_array(self._columns["action"].leaves[0].target[: self.num_rows]))

    def single_row(self) -> tuple[Tree, ...] | None:
        """Return the only row as the arguments of `ReplayBuffer.add`, views [N, ...]; None unless all of it is valid.

        Off policy most collections are one step. The views are made once: anew they would be a tenth of the calls of
        an env step with its gradient step.
        """
        if self.num_rows != 1 or self._has_invalid:
            return None
        if self._first_row is None:
            obs, next_obs = (self._columns["obs"].row(i) for i in range(2))
            names = ("action", "reward", "terminated", "truncated")
            action, reward, terminated, truncated = (self._columns[name].row(0) for name in names)
            extra = self._columns["extra"].row(0) if self.extra else None
            self._first_row = obs, action, reward, next_obs, terminated, truncated, extra
        return self._first_row

    def rollout(self) -> Rollout:
        """Return what was gathered since the last `clear`, as views of the buffer's memory.

        Raises:
            ReplayBufferError: there is nothing.
        """
        if not self.num_rows:
            raise ReplayBufferError("RolloutBuffer.rollout: the buffer is empty. Collect first.")
        num_final = len(self._final_index)
        # Memory is known by the tensors themselves: another one could have the number of one that is gone.
        size, memory = (self.num_rows, num_final), (self._valid.tensor, self._final_obs.leaves[0].tensor)
        if self._views is None or size != self._views[0] or any(map(is_not, memory, self._views[1])):
            views = self._view(*size)
            plain = {name: view for name, view in views.items() if isinstance(view, Tensor)}
            trees = {name: view for name, view in views.items() if name not in plain}
            self._views = size, memory, (plain, trees)
        # The views are the last rollout's, where they can be: most are of one row, and look at the same memory. Dicts
        # are not, as who is given them may add to them.
        plain, trees = self._views[2]
        found: dict[str, Any] = plain | {name: map_tree(lambda x: x, tree) for name, tree in trees.items()}
        if num_final:
            found["final_index"] = torch.tensor(self._final_index, dtype=torch.int64, device=self.device)
        return Rollout(**found, starts=torch.from_numpy(self._starts.copy()).to(self.device))

    def _view(self, num_rows: int, num_final: int) -> dict[str, Tree]:
        """Return views of the first rows and final observations, by their names in a rollout."""
        views = {name: column.rows(num_rows) for name, column in self._columns.items()}
        views["last_obs"] = map_tree(lambda x: x[-1], self._columns["obs"].rows(num_rows + 1))
        views["final_obs"] = self._final_obs.rows(num_final)
        views["final_index"] = torch.zeros(0, dtype=torch.int64, device=self.device)
        return views

    def _grow(self) -> None:
        """Reserve memory for twice as many rows."""
        self._reserve(2 * self._columns["obs"].shape[0] - 1)

    def _reserve(self, rows: int) -> None:
        """Reserve memory for so many rows; of observations last, by which one sees that an interrupt broke it off."""
        self._first_row = None
        for column in reversed(self._columns.values()):
            column.grow(rows)

    def _end(self, envs: Array, rows: Any) -> None:
        """Keep the successors of these envs' cells, which lie in rows that will be overwritten."""
        first, last = len(self._final_index), len(self._final_index) + len(envs)
        if last > self._final_obs.shape[0]:
            self._final_obs.grow(max(last, 2 * self._final_obs.shape[0]))
        for kept, leaf in zip(self._final_obs.leaves, self._columns["obs"].leaves, strict=True):
            kept.target[first:last] = leaf.target[rows + 1, envs]
        self._final_index.extend((rows * self.num_envs + envs).tolist())
