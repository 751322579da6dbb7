"""The rollout buffer: the steps of one collection, in time order."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.data.memory_forecast import check_fits
from rltrainer.data.storage import Array, Extra, RowStorage, Storage, column_specs, require_extra, slot_nbytes
from rltrainer.device import require_device
from rltrainer.errors import ReplayBufferError
from rltrainer.spaces import ValueRange
from rltrainer.tree import Tree, leaves, map_tree, to_array
from rltrainer.types import DenseRollout, Rollout
from rltrainer.validation.field_rules import PositiveInt, checked


class RolloutBuffer:
    """Gathers steps of all envs [T, N]; `rollout()` copies nothing.

    Memory for `num_steps` of each env is reserved, and grows; for other arguments see `ReplayBuffer`. `num_rows` counts
    the steps since the last `clear`.

    Raises:
        ParamsError: a value breaks its rule.
        SpaceError: a space cannot be stored.
        ReplayBufferError: the buffer would not fit into memory.
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
        specs["valid"] = specs["terminated"]  # a flag, too
        shape = (num_steps + 1, num_envs)  # the spare row holds the successor of the last one
        needed = shape[0] * num_envs * slot_nbytes(specs)
        check_fits("RolloutBuffer", "num_steps", num_steps, needed, self.device)
        self._writer = RowStorage("RolloutBuffer", specs, shape, self.device)
        self._columns = self._writer.columns
        self._valid = self._columns["valid"].leaves[0]
        self._final_obs = Storage("RolloutBuffer.final_obs", specs["obs"], (16,), self.device)
        self._final_index: list[int] = []
        # Whether steps came by `add_steps`, and how many of each env.
        self.num_rows, self._has_invalid, self._is_ragged = 0, False, False
        self._continues = False  # whether the next row holds the observations that are acted on next; see `Ring`
        self._lengths = np.zeros(num_envs, np.int64)
        self._first_row: tuple[Any, ...] | None = None
        self._views: tuple[tuple[int, int], dict[str, Tree], dict[str, Tree]] | None = None
        self._starts = np.ones(num_envs, np.bool_)
        self._token: object | None = None
        self._taken: DenseRollout | None = None

    def rings(self) -> Iterator[object]:
        """Yield the memory that `take_part` replaces; see `ReplayBuffer`."""
        yield from (self._writer, self._columns, self._valid)

    def take_part(self, index: int, *, num_envs: int) -> None:
        """Become a part with so many envs: forget all steps, and take memory anew."""
        num_rows, spaces = self._columns["obs"].shape[0] - 1, (self.observation_space, self.action_space)
        del self._writer, self._columns, self._valid, self._first_row, self._views, self._taken  # frees memory first
        RolloutBuffer.__init__(self, num_rows, num_envs, *spaces, self.device, self.extra)

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle without views of this object's memory."""
        return vars(self) | {"_first_row": None, "_views": None}

    @property
    def nbytes(self) -> int:
        """Bytes reserved for the data."""
        return sum(column.nbytes for column in self._columns.values()) + self._final_obs.nbytes

    def __len__(self) -> int:
        """Return how many valid steps it holds."""
        if self._taken is not None:
            return self._taken.reward.numel()
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
        """Store one step of all envs, as `ReplayBuffer.add`; actions as sampled, `valid` [N] bool, or None for all."""
        row = self.num_rows
        if row + 1 == self._columns["obs"].shape[0]:
            self._reserve()
        terminated, truncated = to_array(terminated), to_array(truncated)
        accepted = True if valid is None else self._valid.accept(valid)
        step = (obs, action, reward, next_obs, terminated, truncated, extra)
        self._writer.write((row, row + 1), step, holds_obs=self._continues)
        self._valid.target[row] = accepted
        self._has_invalid |= valid is not None
        self.num_rows += 1
        self._continues = self._token is not None
        if np.count_nonzero(terminated) or np.count_nonzero(truncated):
            self._end(np.flatnonzero(terminated | truncated), row)

    def add_steps(self, envs: Array, step: tuple[Any, ...], valid: Array) -> None:
        """Store the next step of some envs [K], no env twice; `step` is as in `RowStorage.write`, of leaves [K, ...].

        Envs may take different numbers of steps: call `pad` before `rollout`. Between two calls of `clear`, call
        either this or `add`.
        """
        rows = self._lengths[envs]
        while int(rows.max()) + 1 >= self._columns["obs"].shape[0]:
            self._reserve()
        accepted, at = self._valid.accept(valid, envs.shape), ((rows, envs), (rows + 1, envs))
        self._writer.write(at, step, len(envs))
        self._valid.target[at[0]] = accepted
        self._lengths[envs] += 1
        self._is_ragged = self._has_invalid = True
        self.num_rows = max(self.num_rows, int(self._lengths.max()))
        *_, terminated, truncated, _ = step
        done = terminated | truncated
        if np.count_nonzero(done):
            self._end(envs[done], rows[done])

    def pad(self, obs: Tree) -> None:
        """Fill up envs with fewer steps than others with steps that are not valid, at their last observations [N, ...].

        Without any step there is one row of them.
        """
        self._is_ragged = self._has_invalid = True
        self.num_rows = num_rows = max(self.num_rows, 1)
        columns = self._columns
        short = np.flatnonzero(self._lengths < num_rows)
        rest = np.arange(num_rows)[:, None] >= self._lengths
        for name in ("reward", "terminated", "truncated", "valid", "extra"):
            for leaf in columns[name].leaves:
                leaf.target[:num_rows][rest] = 0
        for leaf in columns["action"].leaves:  # any action of the space will do
            leaf.target[:num_rows][rest] = leaf.target[0, int(self._lengths.argmax())]
        for leaf, values in columns["obs"].matched(obs):
            last = leaf.accept(values)
            for n in short.tolist():
                leaf.target[self._lengths[n] : num_rows + 1, n] = last[n]

    def end_trajectory(self, envs: Array | None = None) -> None:
        """End the trajectories of some envs [N] bool, or of all; see `ReplayBuffer.end_trajectory`."""
        if self.num_rows:
            first = (self.num_rows - 1) * self.num_envs
            ended = np.isin(first + np.arange(self.num_envs), self._final_index)
            self._end(np.flatnonzero(~ended if envs is None else ~ended & envs), self.num_rows - 1)

    def begin(self, token: object) -> None:
        """Forget all steps; the next ones continue them if they have the same token, see `ReplayBuffer.add`."""
        self.clear()
        if token is not self._token:
            self._starts[:] = True
            self._token = token

    def is_of(self, token: object) -> bool:
        """Return whether the last steps have this token."""
        return token is self._token

    def resume(self, token: object, starting: Array) -> None:
        """Continue a loaded run, but for some envs [K], which start a new trajectory."""
        self.clear()
        self._token, self._starts[:] = token, False
        self._starts[starting] = True

    def clear(self) -> None:
        """Forget all steps; the next ones continue them, and overwrite rollouts that were returned."""
        if self._is_ragged:
            self._starts[self._lengths > 0] = False
        elif self.num_rows:
            self._starts.fill(False)
        self._lengths.fill(0)
        self.num_rows, self._has_invalid, self._is_ragged, self._continues = 0, False, False, False
        self._final_index.clear()
        self._taken = None

    def take(self, fields: dict[str, Tree]) -> None:
        """Hold a rollout [T, N] of valid steps without a copy; given are its fields but `starts`."""
        self.num_rows, self._taken = len(fields["reward"]), DenseRollout(**fields, starts=self._new_starts())

    def hold(self, rollout: Rollout) -> None:
        """Replace all steps by a rollout [T, N] that was gathered elsewhere.

        Raises:
            ReplayBufferError: it has another number of envs, other shapes or extras.
            SpaceError: a value lies outside of its space.
        """
        num_rows, num_final = len(rollout.reward), len(rollout.final_index)
        for name, column in self._columns.items():
            column.check(map_tree(lambda x: x.flatten(0, 1), getattr(rollout, name)))
        for obs in (rollout.last_obs, rollout.final_obs):
            self._final_obs.check(obs)
        if rollout.reward.shape[1] != self.num_envs:
            text = f"expected a rollout of {self.num_envs} envs, got one of {rollout.reward.shape[1]}"
            raise ReplayBufferError(f"RolloutBuffer.hold: {text}")
        if num_rows + 1 > self._columns["obs"].shape[0]:
            self._reserve(num_rows + 1)
        if num_final > self._final_obs.shape[0]:
            self._views = None
            self._final_obs.grow(num_final)
        for name, view in self._view(num_rows, num_final).items():
            map_tree(lambda mine, new: mine.copy_(new), view, getattr(rollout, name))
        self._final_index = rollout.final_index.tolist()
        self._starts[:] = to_array(rollout.starts)
        self.num_rows, self._has_invalid, self._continues = num_rows, not bool(rollout.valid.all()), False

    def is_finite(self) -> bool:
        """Return whether all numbers are finite, also in steps that are not valid."""
        if self._taken is not None:
            taken = self._taken
            values = leaves((taken.obs, taken.successor, taken.action, taken.reward))
            return bool(torch.stack([leaf.isfinite().all() for leaf in values if leaf.is_floating_point()]).all())
        num_rows, columns = self.num_rows, self._columns
        parts = [(columns["obs"], num_rows + 1), (columns["action"], num_rows), (columns["reward"], num_rows)]
        if self._final_index:
            parts.append((self._final_obs, len(self._final_index)))
        return all([leaf.is_finite(count) for column, count in parts for leaf in column.leaves])

    def holds_actions(self, actions: ValueRange) -> bool:
        """Return whether all actions lie in their space, also in steps that are not valid."""
        kept = self._columns["action"].leaves[0].target[: self.num_rows] if self._taken is None else self._taken.action
        return actions.holds(to_array(kept))

    def single_row(self) -> tuple[Tree, ...] | None:
        """Return the only row as arguments of `ReplayBuffer.add`, views [N, ...]; None unless all of it is valid."""
        if self.num_rows != 1 or self._has_invalid or self._taken is not None:
            return None
        # Most collections off policy are one step, and to make the views is slow beside it: they are kept.
        if self._first_row is None:
            obs, next_obs = (self._columns["obs"].row(i) for i in range(2))
            names = ("action", "reward", "terminated", "truncated")
            action, reward, terminated, truncated = (self._columns[name].row(0) for name in names)
            extra = self._columns["extra"].row(0) if self.extra else None
            self._first_row = obs, action, reward, next_obs, terminated, truncated, extra
        return self._first_row

    def rollout(self) -> Rollout:
        """Return the steps since the last `clear` [T, N], as views of the memory; a `ReplayBufferError` if none."""
        if not self.num_rows:
            raise ReplayBufferError("RolloutBuffer.rollout: the buffer is empty. Collect first.")
        if self._taken is not None:
            return self._taken
        num_final = len(self._final_index)
        size = (self.num_rows, num_final)
        if self._views is None or size != self._views[0]:
            views = self._view(*size)
            plain = {name: view for name, view in views.items() if isinstance(view, Tensor)}
            trees = {name: view for name, view in views.items() if name not in plain}
            self._views = size, plain, trees
        # The last rollout's views are used again if they fit, in new dicts, as callers may add to them.
        _, plain, trees = self._views
        found: dict[str, Any] = plain | {name: map_tree(lambda x: x, tree) for name, tree in trees.items()}
        final_index = torch.tensor(self._final_index, dtype=torch.int64, device=self.device)
        return Rollout(**found, final_index=final_index, starts=self._new_starts())

    def _new_starts(self) -> Tensor:
        return torch.from_numpy(self._starts.copy()).to(self.device)

    def _view(self, num_rows: int, num_final: int) -> dict[str, Tree]:
        """Return views of the first rows and final observations, by their fields in a rollout."""
        views = {name: column.rows(num_rows) for name, column in self._columns.items()}
        views["last_obs"] = map_tree(lambda x: x[-1], self._columns["obs"].rows(num_rows + 1))
        views["final_obs"] = self._final_obs.rows(num_final)
        return views

    def _reserve(self, rows: int | None = None) -> None:
        """Reserve so many rows, or twice as many as there are."""
        self._first_row = self._views = None
        rows = 2 * self._columns["obs"].shape[0] - 1 if rows is None else rows
        # Observations last: their shape decides whether there is room, so an interrupted call is repeated.
        for column in reversed(self._columns.values()):
            column.grow(rows)

    def _end(self, envs: Array, rows: Any) -> None:
        """Keep the successors of these envs' steps [K]; the rows of the successors will be overwritten."""
        self._continues = False
        first, last = len(self._final_index), len(self._final_index) + len(envs)
        if last > self._final_obs.shape[0]:
            self._views = None
            self._final_obs.grow(max(last, 2 * self._final_obs.shape[0]))
        for kept, leaf in zip(self._final_obs.leaves, self._columns["obs"].leaves, strict=True):
            kept.target[first:last] = leaf.target[rows + 1, envs]
        self._final_index.extend((rows * self.num_envs + envs).tolist())
