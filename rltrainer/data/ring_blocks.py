"""The rows of a ring in blocks, for a checkpoint: only those that changed, as they were at one moment.

Hold, and go on: nothing is copied when a save begins. A block is copied by who writes it to disk, or, if that takes
its time, by the ring just before it writes into that block.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rltrainer.data.ring import Ring
from rltrainer.data.storage import Array
from rltrainer.tree import named_leaves
from rltrainer.types import State

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
