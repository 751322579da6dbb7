"""The arrays through which a vector env and its workers exchange what every step needs."""

import mmap
import os
import sys
import tempfile
from typing import Any

import numpy as np

from rltrainer.envs.workers.worker_infos import MAX_NUMBERS
from rltrainer.spaces import leaf_shape
from rltrainer.tree import Tree, leaves, map_tree

Array = np.ndarray[Any, Any]

ALIGNMENT = 64
"""Bytes of a cache line: arrays that two processes write do not share one."""


class SharedArrays:
    """Arrays in memory that has no name: it is reached through a file descriptor, and gone with its last process.

    `multiprocessing.shared_memory` would leave its files in /dev/shm wherever a process is killed, and fails where
    /dev/shm is small, as it is in most containers.

    Args:
        obs_spaces, action_spaces: trees of leaf spaces, of one env's observation and action.
        num_envs: N.
        file: the descriptor that another process made; None makes the memory.

    Attributes:
        obs, action: trees [N, ...] in the dtypes of the spaces.
        reward: [N] float64.
        terminated, truncated: [N] bool.
        skipped: [N] bool, the envs that the next step leaves out.
        info: [N, MAX_NUMBERS] float64, see `worker_infos`.
        layout: the arguments that another process maps them with.
    """

    def __init__(self, obs_spaces: Tree, action_spaces: Tree, num_envs: int, file: int | None = None) -> None:
        self.layout = (obs_spaces, action_spaces, num_envs)

        def batch(space: Any) -> Array:
            return _template(space.dtype, num_envs, *leaf_shape(space))

        templates = {
            "obs": map_tree(batch, obs_spaces),
            "action": map_tree(batch, action_spaces),
            "reward": _template(np.float64, num_envs),
            "terminated": _template(np.bool_, num_envs),
            "truncated": _template(np.bool_, num_envs),
            "skipped": _template(np.bool_, num_envs),
            "info": _template(np.float64, num_envs, MAX_NUMBERS),
        }
        size = sum(map(_padded_size, leaves(templates)))
        self.file = make_file(size) if file is None else file
        memory = mmap.mmap(self.file, size)
        offset = 0

        def view(template: Array) -> Array:
            nonlocal offset
            offset += _padded_size(template)
            return np.ndarray(template.shape, template.dtype, memory, offset - _padded_size(template))

        arrays = map_tree(view, templates)
        self.obs, self.action = arrays["obs"], arrays["action"]
        self.reward, self.terminated, self.truncated = arrays["reward"], arrays["terminated"], arrays["truncated"]
        self.skipped, self.info = arrays["skipped"], arrays["info"]


def _template(dtype: Any, *shape: int) -> Array:
    """Return an array of this dtype and shape that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def _padded_size(array: Array) -> int:
    """Return how many bytes an array takes, up to where the next one may begin."""
    return -(-array.nbytes // ALIGNMENT) * ALIGNMENT


def make_file(size: int) -> int:
    """Return the descriptor of a file of zeros that has no name."""
    if sys.platform == "linux":
        file = os.memfd_create("rltrainer")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, size)
    return file


PULSE_SIZE = 8
"""Bytes of a pulse."""


def map_pulse(file: int) -> Array:
    """Return the integer [1] int64 that a file of `PULSE_SIZE` bytes holds, in memory shared with who maps it too."""
    return np.ndarray(1, np.int64, mmap.mmap(file, PULSE_SIZE))
