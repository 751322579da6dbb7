"""The memory of a replay buffer: one ring of rows per env, and how cells are found in it.

A ring is [R, N]: N envs of R rows, one more than each env's transitions. A row holds the observation that was acted
on, which is the successor of the row before; the spare row, the head, holds that of the newest transition. Where a
trace ends, in an episode's end or a boundary, the successor is kept apart. A cell's flat index is row * N + env.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltrainer.data.frame_stack import FrameStack
from rltrainer.data.incoming_cells import Cells, cells_of_rollout, count_up, differ, outside_text, to_array
from rltrainer.data.n_step import n_step_windows
from rltrainer.data.row_writer import RowWriter
from rltrainer.data.sampler import Sampler
from rltrainer.data.storage import Array, Rows, Storage, numbered
from rltrainer.errors import ReplayBufferError, SpaceError
from rltrainer.spaces import ValueRange
from rltrainer.tree import Tree, leaves, map_tree
from rltrainer.types import Rollout, Transitions


class Ring:
    """Rings of transitions that forget their oldest. Every cell that is stored can be drawn.

    Where frames are stacked, that is but for the k - 1 oldest cells of an env that has forgotten some: the first frames
    of their stacks are gone.

    Args:
        owner: the buffer's class, for errors.
        specs: what `column_specs` returned.
        actions: what actions must lie in.
        cells_per_env: transitions that each env keeps.
        num_envs: N.
        device: where the data lives.
        frames: what takes incoming observations apart, of which a frame is stored; None stores them as they are.

    Attributes:
        written: cells that each env ever stored [N]; the next one's row is this modulo R, and it holds at most C of
            them.
        saved: the files that hold its transitions, and up to which number of each env [N]; see `row_log`.
        memory: stands for what it holds; another object after each `clear`.
    """

    def __init__(
        self,
        owner: str,
        specs: dict[str, Tree],
        actions: ValueRange,
        cells_per_env: int,
        num_envs: int,
        device: torch.device,
        frames: FrameStack | None,
    ) -> None:
        self.specs, self.cells_per_env, self.num_envs, self.device = specs, cells_per_env, num_envs, device
        self.num_rows = cells_per_env + 1
        self.num_cells = self.num_rows * num_envs
        shape = (self.num_rows, num_envs)
        self.columns = {name: Storage(f"{owner}.{name}", part, shape, device) for name, part in specs.items()}
        self.actions = actions
        self._writer = RowWriter(self.columns, actions)
        self.final = FinalObservations(specs["obs"], shape, device)
        self.sampler: Sampler | None = None
        self.saved: dict[Any, Array] = {}
        self.memory = object()
        self.frames = frames
        self.num_frameless = 0 if frames is None else frames.num_frames - 1  # of an env's oldest cells, once it forgets
        self.stream: object | None = None
        self.broken_mask = np.zeros(num_envs, np.bool_)
        self.written = np.zeros(num_envs, np.int64)
        self._level: int | None = 0  # that number, where all envs have stored as many cells
        self._envs = np.arange(num_envs)
        self._table: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(column.nbytes for column in self.columns.values()) + self.final.nbytes

    def sizes(self) -> Array:
        """Return how many cells each env holds [N]."""
        return np.minimum(self.written, self.cells_per_env)

    def oldest(self, written: Array) -> Array:
        """Return the number of each env's oldest cell if so many were ever stored [N]."""
        return np.asarray(np.maximum(written - self.cells_per_env, 0))

    def drawable_sizes(self, written: Array) -> Array:
        """Return how many cells of each env, its newest, can be drawn if so many were ever stored [N]."""
        forgets = written > self.cells_per_env
        return np.asarray(np.minimum(written, self.cells_per_env) - self.num_frameless * forgets)

    def end_trajectory(self, envs: Array | None) -> None:
        """End the traces of some envs [N] bool, or all, before the next cell is written."""
        self.broken_mask |= True if envs is None else envs

    def turn_to(self, stream: object | None) -> None:
        """End all traces: what is stored next is of another stream."""
        self.end_trajectory(None)
        self.stream = stream

    def go_on(self, stream: object, obs: Tree) -> None:
        """Continue a stream where these observations [N, ...] are the successors of what was stored last."""
        obs = self.frames.newest(obs) if self.frames is not None else obs
        head = self.columns["obs"].gather(self._on_device(self._cells_at(self.written)))
        differs = to_array(differ(head, map_tree(lambda x: torch.as_tensor(x, device=self.device), obs)))
        self.stream = stream
        self.end_trajectory(differs & (self.final.slots.reshape(-1)[self._cells_at(self.written - 1)] == 0))

    def add(
        self, obs: Tree, action: Any, reward: Any, next_obs: Tree, terminated: Any, truncated: Any, extra: Any
    ) -> None:
        """Store one cell of every env; see `ReplayBuffer.add`."""
        if self.frames is not None:
            obs, next_obs = self.frames.newest(obs), self.frames.newest(next_obs)
        self._end_traces()
        number: Any = self.written if self._level is None else self._level
        rows = number % self.num_rows, (number + 1) % self.num_rows
        if self._level is None:
            rows = (rows[0], self._envs), (rows[1], self._envs)
        terminated, truncated = to_array(terminated), to_array(truncated)
        self._writer.write(rows, obs, action, reward, next_obs, terminated, truncated, extra)
        if np.count_nonzero(self.final.slots[rows[1]]):
            self.final.release(self._cells_at(self.written + 1))
        if np.count_nonzero(terminated) or np.count_nonzero(truncated):
            done = np.flatnonzero(terminated | truncated)
            final_obs = self.columns["obs"].gather(self._on_device(self._cells_at(self.written + 1)[done]))
            self.final.put(self._cells_at(self.written)[done], final_obs)
        if self.sampler is not None:
            self.sampler.stored(self._on_device(self._cells_at(self.written)))
            self.sampler.forgotten(self._on_device(self._lost(self.written + 1)))
        level = None if self._level is None else self._level + 1
        # In one statement without a call: no handler of a signal runs between its parts.
        self.written, self._level, self._table = self.written + 1, level, None

    def add_rollout(self, rollout: Rollout, stream: object | None) -> None:
        """Store the valid cells of a rollout; see `ReplayBuffer.add_rollout`."""
        num_envs = rollout.reward.shape[1]
        if num_envs != self.num_envs:
            text = f"expected a rollout of {self.num_envs} envs, got one of {num_envs}"
            raise ReplayBufferError(f"ReplayBuffer.add_rollout: {text}")
        if self.frames is not None:
            rollout = self.frames.newest_of(rollout)
        for obs in (map_tree(lambda x: x.flatten(0, 1), rollout.obs), rollout.last_obs, rollout.final_obs):
            self.columns["obs"].check(obs)
        cells = cells_of_rollout(rollout)
        for name, column in self.columns.items():
            column.check(cells.columns[name])
        action = to_array(cells.columns["action"])[cells.source]
        if not self.actions.holds(action):
            raise SpaceError(outside_text(self.columns["action"].name, self.actions, action, ("transition",)))
        if stream is not self.stream:
            self.turn_to(stream)
        # What was stored last is not followed by the rollout's first valid cell where that is not its first one.
        starts = to_array(rollout.starts) | ~to_array(rollout.valid | rollout.idle)[0]
        head = self.columns["obs"].gather(self._on_device(self._cells_at(self.written)))
        self.end_trajectory(starts | to_array(differ(head, map_tree(lambda x: x[0], rollout.obs))))
        self.store(cells)

    def store(self, cells: Cells) -> tuple[Array, Array]:
        """Append cells that were checked to the streams of their envs.

        Returns:
            the flat indices of those that were kept [M], and which of the S values each of them holds [M].
        """
        count = np.bincount(cells.env, minlength=self.num_envs)
        self._end_traces()
        rank = np.empty_like(cells.env)  # of each cell, among those of its env
        rank[np.argsort(cells.env, kind="stable")] = count_up(count)
        number = self.written[cells.env] + rank
        kept = rank >= count[cells.env] - self.cells_per_env  # of more than fit, only the newest
        target = (number % self.num_rows) * self.num_envs + cells.env
        grows = np.flatnonzero(count)
        written = self.written + count
        head = self._cells_at(written)[grows]
        self.final.release(np.concatenate([target[kept], head]))
        for name, column in self.columns.items():
            column.scatter(target[kept], cells.columns[name], cells.source[kept])
        self.columns["obs"].scatter(head, cells.last_obs, grows)
        ended = cells.ended & kept
        self.final.put(target[ended], cells.final_obs, np.flatnonzero(kept[cells.ended]))
        if self.sampler is not None:
            self.sampler.stored(self._on_device(target[kept]))
            self.sampler.forgotten(self._on_device(self._lost(written)))
        self._note_written(written)
        return target[kept], cells.source[kept]

    def __len__(self) -> int:
        """Return how many cells it holds."""
        if self._level is None:
            return int(self.sizes().sum())
        return self.num_envs * min(self._level, self.cells_per_env)

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Return the flat indices of cells [B] or [K, B], drawn uniformly with replacement."""
        if len(shape) > 1:
            # One call per batch: the numbers of K batches are those of K times one batch, on every device.
            return torch.stack([self.draw(shape[1:], generator) for _ in range(shape[0])])
        position = torch.randint(self.num_drawable, shape, generator=generator, device=self.device)
        if self._level is None:
            return self._at(position, *(self._lookup()[-2:] if self.num_frameless else self._lookup()[:2]))
        # Where all envs hold the same rows, their cells are one stretch of the flat memory.
        forgotten = max(self._level - self.cells_per_env, 0)
        if forgotten == 0:
            return position
        return position.add_((forgotten + self.num_frameless) * self.num_envs).remainder_(self.num_cells)

    @property
    def num_drawable(self) -> int:
        """The number of cells that can be drawn."""
        if self._level is None:
            return int(self.drawable_sizes(self.written).sum())
        return len(self) - self.num_frameless * self.num_envs * (self._level > self.cells_per_env)

    def cells(self, position: Tensor) -> Tensor:
        """Return the flat indices of the cells at these positions [B] in [0, len), counted env by env, oldest first."""
        return self._at(position, *self._lookup()[:2])

    def _at(self, position: Tensor, ends: Tensor, offset: Tensor) -> Tensor:
        env = torch.searchsorted(ends, position, right=True)
        row = (position + offset.index_select(0, env)) % self.num_rows
        return torch.add(env, row, alpha=self.num_envs)

    def all_cells(self, chunk_size: int) -> Iterator[Tensor]:
        """Yield the flat indices of all cells, in the order of `cells`, in chunks."""
        size = len(self)
        for start in range(0, size, chunk_size):
            yield self.cells(torch.arange(start, min(start + chunk_size, size), device=self.device))

    def path(
        self, cells: Tensor, length: int, backwards: bool = False, drawable: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Walk from cells along their traces.

        Args:
            cells: [B] flat indices, where the paths begin.
            length: L, cells of a path.
            backwards: whether to walk towards the beginnings of the traces.
            drawable: whether a walk backwards ends at the oldest cell that can be drawn.

        Returns:
            the cells [L, B], and which of them the trace holds [L, B] bool: the first, and those after it up to the end
            of the trace or of what is stored. Beyond, the last of them is repeated.
        """
        steps = torch.arange(length, device=cells.device) * (-self.num_envs if backwards else self.num_envs)
        path = (cells + steps.unsqueeze(1)) % self.num_cells
        ends = (path - self.num_envs) % self.num_cells if backwards else path
        edge = self._lookup()[2 + backwards + (drawable and self.num_frameless > 0)]
        stops = self.final.is_end(ends) | (path == edge.index_select(0, cells % self.num_envs))
        inside = torch.ones_like(stops)
        inside[1:] = stops[:-1].cumsum(0) == 0
        last = path.gather(0, inside.sum(0, keepdim=True) - 1)
        return torch.where(inside, path, last), inside

    def observations(self, cells: Tensor) -> Tree:
        """Return copies of the observations of cells [B], a tree [B, ...]; stacks repeat the first frame of a trace."""
        return self.columns["obs"].gather(cells) if self.frames is None else self._stack(cells, self.frames)

    def successors(self, cells: Tensor) -> Tree:
        """Return copies of the successors of cells [B], a tree [B, ...]."""
        after = self.stored_successors(cells)
        if self.frames is None:
            return after
        return torch.cat([self._stack(cells, self.frames)[:, 1:], after.unsqueeze(1)], 1)

    def stored_successors(self, cells: Tensor) -> Tree:
        """Return copies of the successors of cells [B] as they are stored, frames for stacks, a tree [B, ...]."""
        after = (cells + self.num_envs).remainder_(self.num_cells)
        return self.final.replace(cells, self.columns["obs"].gather(after))

    def _stack(self, cells: Tensor, frames: FrameStack) -> Tensor:
        """Return the frames of cells [B] and of those before them, the oldest first [B, k, ...]."""
        path = self.path(cells, frames.num_frames, backwards=True)[0].flip(0).T
        found: Tensor = self.columns["obs"].gather(path.flatten())
        return found.view(*path.shape, *found.shape[1:])

    def transitions(self, cells: Tensor, n_step: int, gamma: float) -> Transitions:
        """Return the transitions that start at these cells [B]; see `ReplayBuffer.sample`."""
        columns = self.columns
        if n_step == 1:
            last, reward = cells, columns["reward"].gather(cells)
            discount = torch.full_like(reward, gamma)
        else:
            path, inside = self.path(cells, min(n_step, self.cells_per_env))
            last, reward, discount = n_step_windows(path, inside, columns["reward"].flat[path], gamma)
        terminated = columns["terminated"].gather(last)
        return Transitions(
            obs=self.observations(cells),
            action=columns["action"].gather(cells),
            reward=reward,
            next_obs=self.successors(last),
            terminated=terminated,
            truncated=columns["truncated"].gather(last),
            discount=discount.masked_fill_(terminated, 0.0),
            index=cells,
            weight=torch.ones_like(reward),
            extra=columns["extra"].gather(cells) if columns["extra"].leaves else {},
        )

    def clear(self) -> None:
        """Forget all cells; the memory is kept."""
        if self.sampler is not None:
            self.sampler.forgotten(self.stored_cells(self.written))
        self.final.clear()
        self.broken_mask[:] = False
        self.saved, self.memory = {}, object()
        self._note_written(np.zeros(self.num_envs, np.int64))

    def restore(self, written: Array, broken_mask: Array, head: Tree, parts: Iterable[Rows]) -> None:
        """Copy a checked state in: how much each env ever stored [N], its newest successor [N, ...], and all rows."""
        self.clear()
        oldest = self.oldest(written)
        for rows in parts:
            env, number = numbered(rows.start, rows.stop)
            cells, is_held = number % self.num_rows * self.num_envs + env, number >= oldest[env]
            held = None if is_held.all() else np.flatnonzero(is_held)
            for name, column in self.columns.items():
                column.scatter(cells if held is None else cells[held], rows.columns[name], held)
            ends = np.flatnonzero(is_held[rows.final_index])
            self.final.put(cells[rows.final_index[ends]], rows.final_obs, ends)
        self.columns["obs"].scatter(self._cells_at(written), head)
        self.stream = None
        self.broken_mask[:] = broken_mask
        self._note_written(written.copy())
        if self.sampler is not None:
            self.sampler.stored(self.drawable_cells(written))

    def stored_cells(self, written: Array) -> Tensor:
        """Return the flat indices of the cells that hold transitions if so many were ever stored [N], ascending."""
        return self._newest(written, np.minimum(written, self.cells_per_env))

    def drawable_cells(self, written: Array) -> Tensor:
        """Return those of them that can be drawn."""
        return self._newest(written, self.drawable_sizes(written))

    def _lost(self, written: Array) -> Array:
        """Return the cells of the heads, and stored ones that cannot be drawn, if so many were ever stored [N]."""
        heads = self._cells_at(written)
        if not self.num_frameless or not (forgets := written > self.cells_per_env).any():
            return heads
        oldest = written - self.cells_per_env + np.arange(self.num_frameless)[:, None]
        return np.concatenate([heads, self._cells_at(oldest)[:, forgets].reshape(-1)])

    def _newest(self, written: Array, sizes: Array) -> Tensor:
        rows = np.arange(min(int(written.max()), self.num_rows))[:, None]  # no more were ever written
        return self._on_device(np.flatnonzero((rows - (written - sizes)) % self.num_rows < sizes))

    def _end_traces(self) -> None:
        """Keep the successors of cells that what is written next does not continue."""
        if not np.count_nonzero(self.broken_mask):
            return
        newest = self._cells_at(self.written - 1)
        goes_on = self.broken_mask & (self.written > 0) & (self.final.slots.reshape(-1)[newest] == 0)
        head = self._cells_at(self.written)[goes_on]
        self.final.put(newest[goes_on], self.columns["obs"].gather(self._on_device(head)))
        self.broken_mask[:] = False

    def heads(self) -> Array:
        """Return the flat indices of the cells that are written next [N]; no trace ends there."""
        return self._cells_at(self.written)

    def _cells_at(self, number: Array) -> Array:
        """Return the flat index of each env's cell of this number, counted from the first that was ever stored."""
        return number % self.num_rows * self.num_envs + self._envs

    def _note_written(self, written: Array) -> None:
        level = int(written[0]) if (written == written[0]).all() else None
        self.written, self._level, self._table = written, level, None

    def _lookup(self) -> Tensor:
        """Return by env [4, N]: the end of its positions, its oldest row less their begin, its newest, oldest cell.

        Where stacks are put together, [7, N]: then the last three say the same of what can be drawn, its oldest first.
        """
        if self._table is None:
            written, sizes = self.written, self.sizes()
            table = [*self._positions(sizes), self._cells_at(written - 1), self._cells_at(written - sizes)]
            if self.num_frameless:
                sizes = self.drawable_sizes(written)
                table += [self._cells_at(written - sizes), *self._positions(sizes)]
            self._table = self._on_device(np.stack(table))
        return self._table

    def _positions(self, sizes: Array) -> tuple[Array, Array]:
        """Return where the positions of each env's newest cells end, and their first row less where they begin."""
        ends = np.cumsum(sizes)
        return ends, (self.written - sizes) % self.num_rows - (ends - sizes)

    def _on_device(self, indices: Array) -> Tensor:
        # Nobody waits: what lies in pageable memory has been read when the call returns.
        return torch.from_numpy(indices).to(self.device, non_blocking=True)


class FinalObservations:
    """The successors of the cells where a trace ended, in a store that grows to the most there ever were at once.

    `slots` [R, N] int32 says where a cell's successor lies in the store. 0 says that the trace goes on: the successor
    is the next row's observation. So slot 0 of the store is never used, and any slot can be looked up.

    Args:
        specs: the observation's tree of specs.
        shape: rows and envs of the buffer.
        device: where the observations live; another than the CPU has the slots, too.
    """

    def __init__(self, specs: Tree, shape: tuple[int, int], device: torch.device) -> None:
        self.slots = np.zeros(shape, np.int32)
        self._device = device
        self._on_device = None if device.type == "cpu" else torch.from_numpy(self.slots.reshape(-1)).to(device)
        self._store = Storage("final_obs", specs, (16,), device)
        self._free = list(range(1, 16))

    @property
    def nbytes(self) -> int:
        """Bytes of the store and the slots."""
        return self._store.nbytes + self.slots.nbytes

    def put(self, cells: Array, values: Tree, source: Array | None = None) -> None:
        """End a trace at each cell.

        Args:
            cells: [K] int64, flat indices, none of which ends a trace yet.
            values: tree of tensors [S, ...].
            source: [K] int64, which of the S values follows each cell; None takes them in order.
        """
        size, num_missing = self._store.shape[0], len(cells) - len(self._free)
        if num_missing > 0:
            self._store.grow(max(size + num_missing, size * 3 // 2))
            self._free.extend(range(size, self._store.shape[0]))
        slots = np.array([self._free.pop() for _ in cells], np.int64)
        self._store.scatter(slots, values, source)
        self._set(cells, slots)

    def release(self, cells: Array) -> None:
        """Forget the ends at these cells [M], where there are any."""
        slots = self.slots.reshape(-1)[cells]
        ended = slots > 0
        if ended.any():
            self._free.extend(slots[ended].tolist())
            self._set(cells[ended], np.zeros(1, np.int64))

    def repair(self, heads: Array) -> None:
        """Find anew which slots are free, after an interrupt; at the heads of the traces [N] none ends."""
        slots = self.slots.reshape(-1)
        slots[heads] = 0
        self._free = np.setdiff1d(np.arange(1, self._store.shape[0]), slots).tolist()
        if self._on_device is not None:
            self._on_device.copy_(torch.from_numpy(slots))

    def is_end(self, cells: Tensor) -> Tensor:
        """Return whether a trace ends at each cell; any shape."""
        slots = torch.from_numpy(self.slots.reshape(-1)) if self._on_device is None else self._on_device
        return slots[cells] > 0

    def replace(self, cells: Tensor, next_obs: Tree) -> Tree:
        """Put in the successors of cells that end a trace.

        Args:
            cells: [B] flat indices.
            next_obs: tree [B, ...], the next rows' observations; changed in place.
        """
        if self._on_device is not None:
            # A device graph needs fixed shapes: look up a successor for every cell, then select.
            slots = self._on_device.index_select(0, cells)
            return map_tree(lambda after, final: _select(slots > 0, final, after), next_obs, self._store.gather(slots))
        ends = self.slots.reshape(-1)[cells.numpy()]  # arrays: most batches hold no end, and NumPy is quicker to see it
        if np.count_nonzero(ends):
            ended = np.flatnonzero(ends)
            for after, final in zip(leaves(next_obs), self._store.leaves, strict=True):
                after.numpy()[ended] = final.target[ends[ended]]
        return next_obs

    def clear(self) -> None:
        """Forget all ends; the memory is kept."""
        if len(self._free) < self._store.shape[0] - 1:  # else a look at all of an empty buffer would take its time
            self.release(np.flatnonzero(self.slots))

    def of(self, cells: Array) -> Tree:
        """Return copies of the successors of cells [K] that end a trace, a tree [K, ...]."""
        slots = torch.from_numpy(self.slots.reshape(-1)[cells])
        return self._store.gather(slots.to(self._device))

    def _set(self, cells: Array, slots: Array) -> None:
        self.slots.reshape(-1)[cells] = slots
        if self._on_device is not None:
            values = torch.from_numpy(slots.astype(np.int32)).to(self._device)
            self._on_device[torch.from_numpy(cells).to(self._device)] = values


def _select(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(condition.view(-1, *[1] * (yes.ndim - 1)), yes, no)
