"""Arrays in memory that processes share."""

import mmap
import os
import sys
import tempfile
import weakref
from itertools import accumulate

import numpy as np

from rltrainer.tree import Tree, leaves, map_tree

# Bytes of a cache line. If two processes wrote into one, each write would take it from the other's core.
ALIGNMENT = 64


class SharedArrays:
    """Arrays in memory without a name: processes reach it through a file descriptor; it is gone with the last one."""

    # `layout` is a tree of dtypes with shapes, such as `np.dtype((np.float32, (8, 3)))`, and `arrays` the tree of
    # arrays, zeros at first. `file` is a descriptor of another process's memory, which this object closes, or None.

    # multiprocessing.shared_memory leaves files in /dev/shm where a process is killed, and fails where /dev/shm is
    # small, as it is in most containers.

    def __init__(self, layout: Tree, file: int | None = None) -> None:
        self.layout = layout
        sizes = [-(-int(dtype.itemsize) // ALIGNMENT) * ALIGNMENT for dtype in leaves(layout)]
        self.file = _make_file(sum(sizes)) if file is None else file
        self.close = weakref.finalize(self, os.close, self.file)
        memory, offsets = mmap.mmap(self.file, sum(sizes)), accumulate(sizes, initial=0)
        self.arrays = map_tree(lambda dtype: np.ndarray(dtype.shape, dtype.base, memory, next(offsets)), layout)


def _make_file(size: int) -> int:
    """Return the descriptor of a file of zeros without a name."""
    if sys.platform == "linux":
        file = os.memfd_create("rltrainer")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, size)
    return file
