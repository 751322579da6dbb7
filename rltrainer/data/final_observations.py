"""Ends of traces: the true successors that the next row of a replay buffer does not hold."""

import numpy as np
import torch
from torch import Tensor

from rltrainer.data.storage import Array, Storage
from rltrainer.tree import Tree, leaves, map_tree


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
        self.era = object()  # another one after each `clear`

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
            self.release(self.cells())
        self.era = object()

    def cells(self) -> Array:
        """Return the flat indices of all ends [K], ascending."""
        return np.flatnonzero(self.slots)

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
