"""The use of a CUDA device: memory, and the time that update steps take on it. Nobody waits for the device."""

from collections import deque
from typing import Any

import torch

MIB = 2**20


class GpuUse:
    """Measures update steps, each in this object's context, and the memory of its process.

    Args:
        device: of CUDA.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin: Any = None
        self._under_way: deque[tuple[Any, Any]] = deque()  # as many as the device lags behind, which has a limit
        self._milliseconds, self._num_update_steps = 0.0, 0

    def __enter__(self) -> None:
        self._begin = self._mark()

    def __exit__(self, *exception: object) -> None:
        self._under_way.append((self._begin, self._mark()))
        self._take_ended()

    def values(self) -> dict[str, float]:
        """Return memory in MiB, and the mean time of the update steps that ended since this was asked last.

        `memory` is what tensors hold, `memory_peak` the most that they have held since the process began (or the peak
        was reset), `memory_reserved` what PyTorch has taken from the device.
        """
        self._take_ended()
        memory = {
            "memory": torch.cuda.memory_allocated(self._device) / MIB,
            "memory_peak": torch.cuda.max_memory_allocated(self._device) / MIB,
            "memory_reserved": torch.cuda.memory_reserved(self._device) / MIB,
        }
        milliseconds, count = self._milliseconds, self._num_update_steps
        self._milliseconds, self._num_update_steps = 0.0, 0
        return memory | ({"update_seconds": milliseconds / 1000 / count} if count else {})

    def _mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch ships no type of it
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _take_ended(self) -> None:
        while self._under_way and self._under_way[0][1].query():
            begin, end = self._under_way.popleft()
            self._milliseconds += begin.elapsed_time(end)
            self._num_update_steps += 1
