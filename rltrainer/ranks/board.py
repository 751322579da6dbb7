"""Memory in which the ranks of one machine sum tensors.

A sum of two processes by gloo takes 0.4 to 4 ms, as it wakes several threads and goes through sockets; here some 20 us.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from rltrainer.processes.channel import AWAKE, yield_core
from rltrainer.processes.shared_arrays import ALIGNMENT, SharedArrays

NBYTES = 2**20
"""The bytes of a rank's part of a tensor that is exchanged at once."""
TICK = 0.02
"""Seconds between two looks for ranks that have failed."""
IS_ORDERED = platform.machine() in ("x86_64", "AMD64")
"""True if the processor shows its writes to other cores in order, so that a number can say that a tensor is there."""


class Board:
    """The place where each rank writes its tensor, and then reads all of them.

    Args:
        rank: of this process.
        world: the number of processes.
        path: of the memory of another process's board; None makes it.
        check: called now and then with the seconds of a wait; raises if it is in vain.
    """

    def __init__(self, rank: int, world: int, path: str | None, check: Callable[[float], None]) -> None:
        layout = np.dtype((np.uint8, (2, world, NBYTES))), np.dtype((np.int64, (world, ALIGNMENT // 8)))
        memory = SharedArrays(layout, None if path is None else os.open(path, os.O_RDWR))
        halves, self._counts = memory.arrays
        self.path = f"/proc/{os.getpid()}/fd/{memory.file}"
        self._memory, self._halves = memory, torch.from_numpy(halves)
        self._rank, self._count, self._check = rank, 0, check

    @classmethod
    def opened(cls, rank: int, world: int, path: str | None, check: Callable[[float], None]) -> "Board | None":
        """Return a board; None if this machine has no such memory, or its processor does not order writes."""
        with suppress(OSError):
            size = world * (2 * NBYTES + ALIGNMENT)
            if path is not None and (not os.readlink(path).startswith("/memfd:") or os.stat(path).st_size != size):
                return None  # another file, which tensors would overwrite
            return cls(rank, world, path, check) if IS_ORDERED and os.path.isdir("/proc/self/fd") else None
        return None

    def gather(self, found: Tensor, x: Tensor) -> None:
        """Write the tensors of all ranks [...] into `found` [world, ...], both contiguous."""
        for parts, out in self._exchanged(x, found.view(len(self._counts), x.numel())):
            out.copy_(parts)

    def sum(self, total: Tensor, x: Tensor) -> None:
        """Write the sum of all ranks' tensors [...] into `total` [...], in the order of ranks; both contiguous."""
        for (first, second, *others), out in self._exchanged(x, total.view(-1)):
            torch.add(first, second, out=out)
            for each in others:
                out += each

    def _exchanged(self, x: Tensor, result: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        size = NBYTES // x.element_size()
        for own, out in zip(torch.split(x.view(-1), size), torch.split(result, size, -1), strict=True):
            self._count += 1
            # Two halves in turn: a rank that writes into one again has met all others since, so they have read it.
            parts = self._halves[self._count % 2, :, : own.nbytes].view(x.dtype)
            parts[self._rank].copy_(own)
            sizes = self._counts[:, 1 + self._count % 2]
            sizes[self._rank], self._counts[self._rank, 0] = own.nbytes, self._count
            self._wait()
            if (sizes != own.nbytes).any():
                raise RuntimeError(f"ranks exchange tensors of different sizes: {sizes.tolist()} bytes")
            yield parts, out

    def _wait(self) -> None:
        """Wait until all ranks have written."""
        counts, began = self._counts[:, 0], time.perf_counter()
        looked = began
        while counts.min() < self._count:
            waited = (now := time.perf_counter()) - began
            if waited > AWAKE:
                time.sleep(1e-4)
            else:
                yield_core()
            if now - looked > TICK:
                looked = now
                self._check(waited)
