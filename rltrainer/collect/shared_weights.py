"""Weights for copies of a policy in other processes: in memory that processes share, and published by versions."""

import contextlib
import errno
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rltrainer.errors import EnvError, ParamsError
from rltrainer.nets import Policy
from rltrainer.processes.shared_arrays import SharedArrays

# Name, shape and dtype of each tensor.
Layout = list[tuple[str, tuple[int, ...], torch.dtype]]


def tensors_of(modules: Mapping[str, nn.Module]) -> list[tuple[str, Tensor]]:
    """Return all parameters and buffers of modules, of any shapes, with names, in the same order for a copy."""
    named = []
    for name, module in modules.items():
        of_module: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
        named += [(f"{name}.{path}", tensor) for path, tensor in of_module]
    return named


class SharedWeights:
    """The newest weights, in memory that processes share; `file` is another process's descriptor, None makes it.

    Weights are written and read under a lock, so that no worker acts with half of a version.
    """

    def __init__(self, layout: Layout, file: int | None = None) -> None:
        self.layout = layout
        sizes = (dtype.itemsize * math.prod(shape) for _, shape, dtype in layout)
        weights = tuple(np.dtype((np.uint8, (size,))) for size in sizes)
        numbers, progress = np.dtype((np.int64, (2,))), np.dtype((np.float64, (1,)))  # numbers: serial and version
        self._memory = SharedArrays({"numbers": numbers, "progress": progress, "weights": weights}, file)
        arrays = self._memory.arrays
        self.file, self._numbers, self._progress = self._memory.file, arrays["numbers"], arrays["progress"]
        self._views = [
            torch.from_numpy(array).view(dtype).view(shape)
            for array, (_, shape, dtype) in zip(arrays["weights"], layout, strict=True)
        ]

    @torch.no_grad()
    def publish(self, sources: Sequence[Tensor], version: int, progress: float, timeout: float | None) -> None:
        """Write weights, of any shapes and device, and the progress on which schedules of exploration depend.

        A worker that reads for more than `timeout` seconds is an `EnvError`; None lets it take any time.
        """
        with _locked(self.file, timeout, is_shared=False):
            torch._foreach_copy_(self._views, list(sources))
            self._numbers[:], self._progress[0] = (self.serial + 1, version), progress

    @torch.no_grad()
    def take(self, targets: Sequence[Tensor]) -> tuple[int, int, float]:
        """Copy the newest weights, of any shapes; return their serial, their version, and the training's progress."""
        with _locked(self.file, None, is_shared=True):
            torch._foreach_copy_(list(targets), self._views)
            return self.serial, int(self._numbers[1]), float(self._progress[0])

    @property
    def serial(self) -> int:
        """The number of publications; a version may have several, as after a checkpoint was loaded."""
        return int(self._numbers[0])


class Publisher:
    """Publishes the weights of modules, by their paths in a worker, and the policy's progress.

    `weights`, made by `make` for a layout, is the memory that the workers have; None before they have it.
    """

    def __init__(
        self, owner: str, policy: Policy, modules: Mapping[str, nn.Module], make: Any, timeout: float | None
    ) -> None:
        self.weights: Any = None
        self._owner, self._policy, self.modules, self._make, self._timeout = owner, policy, modules, make, timeout

    def begin(self) -> Any:
        """Make the memory; from now on the modules must keep their tensors."""
        self._weight_dtype, named = self._policy.weight_dtype, tensors_of(self.modules)
        self._sources = [tensor for _, tensor in named]
        return self._make(layout_of(named))

    def publish(self, version: int) -> None:
        """Publish the present weights; a `ParamsError` if they changed their dtype."""
        assert self.weights is not None, "begun"
        if self._policy.weight_dtype is not self._weight_dtype:
            rule = f"must stay in {self._weight_dtype}, which workers have, and is in {self._policy.weight_dtype}"
            raise ParamsError(f"{self._owner}.policy: {rule}. Make the trainer before anything is collected.")
        self.weights.publish(self._sources, version, self._policy.progress(), self._timeout)


def check_layout(expected: Layout, found: Layout, owner: str) -> None:
    """Raise a `ParamsError` that names the first tensor of a copy that differs from its source."""
    mine, other = {name: rest for name, *rest in expected}, {name: rest for name, *rest in found}
    for name in [*mine, *other]:
        if mine.get(name) != other.get(name):
            here, there = (table.get(name, "nothing") for table in (mine, other))
            rule = "must have the same tensors here and in the workers"
            raise ParamsError(f"{owner}: {rule}; {name}: {here} here, {there} there")


@contextlib.contextmanager
def _locked(file: int, timeout: float | None, is_shared: bool) -> Iterator[None]:
    # The lock is the kernel's on the file: a process that dies with it loses it. Readers share it.
    import fcntl  # Windows has none: there rltrainer imports, and has no workers that share weights

    until = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        try:
            fcntl.lockf(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
        if timeout is not None and time.monotonic() > until:
            raise EnvError(f"a worker process reads its weights for more than {timeout:g} seconds")
        time.sleep(2e-5)  # a copy of the weights takes some hundred microseconds
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)


def layout_of(tensors: Sequence[tuple[str, Tensor]]) -> Layout:
    """Return the layout of named tensors of any shape."""
    return [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors]
