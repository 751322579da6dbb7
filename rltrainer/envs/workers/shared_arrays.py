"""The arrays through which a vector env and its workers exchange what every step needs."""

import mmap
import os
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from rltrainer.envs.workers.worker_infos import MAX_NUMBERS
from rltrainer.spaces import leaf_shape
from rltrainer.tree import Tree, leaves, map_tree

ALIGNMENT = 64
"""Bytes of a cache line: arrays that two processes write do not share one."""


class SharedArrays:
    """Arrays in memory that has no name: it is reached through a file descriptor, and gone with its last process.

    `multiprocessing.shared_memory` would leave its files in /dev/shm wherever a process is killed, and fails where
    /dev/shm is small, as it is in most containers.

    Args:
        obs_spaces: tree of leaf spaces of one env's observation.
        action_spaces: the same of its action.
        num_envs: N.
        num_workers: W.
        file: the descriptor that another process made; None makes the memory.

    Attributes:
        obs, action: trees [N, ...] in the dtypes of the spaces.
        reward: [N] float64.
        terminated, truncated: [N] bool.
        skipped: [N] bool, the envs that the next step leaves out.
        info: [N, MAX_NUMBERS] float64, see `worker_infos`.
        current: [W] int64, the env that each worker is in; -1 between envs.
        layout: the arguments that another process maps them with.
    """

    def __init__(
        self, obs_spaces: Tree, action_spaces: Tree, num_envs: int, num_workers: int, file: int | None = None
    ) -> None:
        self.layout = (obs_spaces, action_spaces, num_envs, num_workers)

        def batch(space: Any) -> _Spec:
            return _Spec((num_envs, *leaf_shape(space)), np.dtype(space.dtype))

        flag = _Spec((num_envs,), np.dtype(np.bool_))
        specs = {
            "obs": map_tree(batch, obs_spaces),
            "action": map_tree(batch, action_spaces),
            "reward": _Spec((num_envs,), np.dtype(np.float64)),
            "terminated": flag,
            "truncated": flag,
            "skipped": flag,
            "info": _Spec((num_envs, MAX_NUMBERS), np.dtype(np.float64)),
            "current": _Spec((num_workers,), np.dtype(np.int64)),
        }
        size = sum(spec.size for spec in leaves(specs))
        self.file = _make_file(size) if file is None else file
        memory = mmap.mmap(self.file, size)
        offset = 0

        def view(spec: _Spec) -> np.ndarray[Any, Any]:
            nonlocal offset
            offset += spec.size
            return np.ndarray(spec.shape, spec.dtype, memory, offset - spec.size)

        arrays = map_tree(view, specs)
        self.obs, self.action = arrays["obs"], arrays["action"]
        self.reward, self.terminated, self.truncated = arrays["reward"], arrays["terminated"], arrays["truncated"]
        self.skipped, self.info, self.current = arrays["skipped"], arrays["info"], arrays["current"]
        if file is None:
            self.current[:] = -1


@dataclass(frozen=True, slots=True)
class _Spec:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes, up to where the next array may begin."""
        nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _make_file(size: int) -> int:
    """Return the descriptor of a file of zeros that has no name."""
    if sys.platform == "linux":
        file = os.memfd_create("rltrainer")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, size)
    return file
