"""Weights in memory that a learner and its workers share: written and read under a lock, with their version."""

import errno
import mmap
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rltrainer.collect.weight_sync import tensors_of
from rltrainer.envs.workers.shared_arrays import ALIGNMENT, make_file
from rltrainer.errors import EnvError, ParamsError
from rltrainer.nets import Policy

Layout = list[tuple[str, tuple[int, ...], torch.dtype]]
"""Name, shape and dtype of each tensor."""


class SharedWeights:
    """The newest weights, in memory without a name; see `SharedArrays`.

    The lock is the kernel's on the file: whoever dies with it loses it, and nobody acts with half of a version.

    Args:
        layout: of the tensors.
        file: the descriptor that another process made; None makes the memory.
    """

    def __init__(self, layout: Layout, file: int | None = None) -> None:
        self.layout = layout
        header = _padded(8 * 3)
        sizes = [_padded(dtype.itemsize * int(np.prod(shape))) for _, shape, dtype in layout]
        size = header + sum(sizes)
        self.file = make_file(size) if file is None else file
        self._memory = mmap.mmap(self.file, size)
        weakref.finalize(self, os.close, self.file)
        self._numbers = np.ndarray(2, np.int64, self._memory, 0)  # serial and version
        self._progress = np.ndarray(1, np.float64, self._memory, 16)
        offsets = np.cumsum([header, *sizes]).tolist()
        self._views = [self._view(*each) for each in zip(layout, offsets, strict=False)]

    @torch.no_grad()
    def publish(self, sources: Sequence[Tensor], version: int, progress: float, timeout: float | None) -> None:
        """Write weights for all workers.

        Args:
            sources: the tensors of the layout, on any device.
            version: theirs.
            progress: the share of the training done, by which schedules of exploration go.
            timeout: seconds that workers may take to read; None for any time.

        Raises:
            EnvError: a worker reads for longer than that.
        """
        with _Lock(self.file, timeout, is_shared=False):
            torch._foreach_copy_(self._views, list(sources))
            self._numbers[:], self._progress[0] = (self.serial + 1, version), progress

    @torch.no_grad()
    def take(self, targets: Sequence[Tensor]) -> tuple[int, int, float]:
        """Copy the newest weights; return their serial, their version, and the progress of the training."""
        with _Lock(self.file, None, is_shared=True):
            torch._foreach_copy_(list(targets), self._views)
            return self.serial, int(self._numbers[1]), float(self._progress[0])

    @property
    def serial(self) -> int:
        """The number of publications; a version may have several, as after a checkpoint was loaded."""
        return int(self._numbers[0])

    def _view(self, spec: tuple[str, tuple[int, ...], torch.dtype], offset: int) -> Tensor:
        _, shape, dtype = spec
        count = int(np.prod(shape))
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset).view(shape)


class Publisher:
    """Publishes the weights of modules to workers.

    Args:
        policy: whose progress, by which schedules of exploration go, is published with them.
        modules: by the paths that they have in a worker.
        timeout: see `SharedWeights.publish`.

    Attributes:
        weights: the memory that they go through; None before `begin`.
    """

    def __init__(self, policy: Policy, modules: Mapping[str, nn.Module], timeout: float | None) -> None:
        self.weights: SharedWeights | None = None
        self._policy, self.modules, self._timeout = policy, modules, timeout
        self._offered: int | None = None

    def begin(self) -> SharedWeights:
        """Make the memory: from now on the modules keep their tensors."""
        self._weight_dtype = self._policy.weight_dtype
        named = tensors_of(self.modules)
        self._sources = [tensor for _, tensor in named]
        self.weights = SharedWeights(layout_of(named))
        return self.weights

    def publish(self, version: int) -> None:
        """Publish the weights of now.

        Raises:
            ParamsError: they have another format than when workers were given their copies.
        """
        assert self.weights is not None, "begun"
        if self._policy.weight_dtype is not self._weight_dtype:
            rule = f"must stay in {self._weight_dtype}, which workers have, and is in {self._policy.weight_dtype}"
            raise ParamsError(f"AsyncCollector.policy: {rule}. Make the trainer before anything is collected.")
        self.weights.publish(self._sources, version, self._policy.progress(), self._timeout)
        self._offered = None

    def offer(self, version: int) -> None:
        """Publish the weights when `give` is called: a worker is asked for rows in one of several training steps."""
        self._offered = version

    def give(self) -> None:
        """Publish what was offered."""
        if self._offered is not None:
            self.publish(self._offered)


def check_layout(expected: Layout, found: Layout, owner: str) -> None:
    """Raise a `ParamsError` that names the first tensor of a copy that differs from its source."""
    mine, other = {name: rest for name, *rest in expected}, {name: rest for name, *rest in found}
    for name in [*mine, *other]:
        if mine.get(name) != other.get(name):
            here, there = (table.get(name, "nothing") for table in (mine, other))
            rule = "must have the same tensors here and in the workers"
            raise ParamsError(f"{owner}: {rule}; {name}: {here} here, {there} there")


class _Lock:
    """The lock on a file, shared by readers."""

    def __init__(self, file: int, timeout: float | None, is_shared: bool) -> None:
        import fcntl  # Windows has none: there rltrainer imports, and has no workers that share weights

        self._file, self._timeout, self._lock = file, timeout, fcntl.lockf
        self._kind = (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        self._release = fcntl.LOCK_UN

    def __enter__(self) -> None:
        until = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            try:
                self._lock(self._file, self._kind)
                return
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
            if until is not None and time.monotonic() > until:
                raise EnvError(f"a worker process reads its weights for more than {self._timeout:g} seconds")
            time.sleep(2e-5)  # a copy of the weights takes some hundred microseconds

    def __exit__(self, *_: Any) -> None:
        self._lock(self._file, self._release)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def layout_of(tensors: Sequence[tuple[str, Tensor]]) -> Layout:
    """Return the layout of named tensors."""
    return [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors]
