"""Arrays in memory that processes share."""

import mmap
import os
import sys
import tempfile
import weakref
from typing import Any

import numpy as np

from rltrainer.tree import Tree, leaves, map_tree

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
"""Bytes of a cache line: arrays that two processes write do not share one."""


class SharedArrays:
    """Arrays in memory without a name: processes reach it through a file descriptor, and it is gone with the last one.

    Args:
        layout: a tree of dtypes with shapes, such as `np.dtype((np.float32, (8, 3)))`.
        file: the descriptor that another process made, from here on this object's; None makes the memory.

    Attributes:
        arrays: the tree of arrays, of zeros at first.
    """

    # multiprocessing.shared_memory leaves files in /dev/shm where a process is killed, and fails where /dev/shm is
    # small, as it is in most containers.

    def __init__(self, layout: Tree, file: int | None = None) -> None:
        self.layout = layout
        size = sum(map(_padded_size, leaves(layout)))
        self.file = _make_file(size) if file is None else file
        self.close = weakref.finalize(self, os.close, self.file)
        memory, offset = mmap.mmap(self.file, size), 0

        def view(dtype: Any) -> Array:
            nonlocal offset
            offset += _padded_size(dtype)
            return np.ndarray(dtype.shape, dtype.base, memory, offset - _padded_size(dtype))

        self.arrays = map_tree(view, layout)


def _padded_size(dtype: Any) -> int:
    return -(-int(dtype.itemsize) // ALIGNMENT) * ALIGNMENT


def _make_file(size: int) -> int:
    """Return the descriptor of a file of zeros that has no name."""
    if sys.platform == "linux":
        file = os.memfd_create("rltrainer")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, size)
    return file
