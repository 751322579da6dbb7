"""Reading a number that lies on a device without waiting for it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Transfer = tuple[Tensor, Callable[[], bool]]
"""A copy on the host, and what says whether it has arrived."""


class DeviceFlag:
    """Tells whether a scalar tensor was non-zero a while ago: a copy is under way while the program goes on.

    Args:
        number: the scalar.
        start: starts a transfer of it to the host.
    """

    def __init__(self, number: Tensor, start: Callable[[Tensor], Transfer]) -> None:
        self._number, self._start = number, start
        self._under_way: Transfer | None = None

    def was_nonzero(self, wait: bool) -> bool:
        """Return whether it was non-zero when the newest copy that has arrived was started.

        Args:
            wait: wait for the device, and so answer for now.
        """
        if wait:
            self._under_way = None
            return bool(self._number)
        if self._under_way is None:
            self._under_way = self._start(self._number)
            return False
        value, has_arrived = self._under_way
        if not has_arrived():
            return False
        # Once it was seen its owner sets the number to zero: a copy that starts before that would tell it twice.
        self._under_way = None if value else self._start(self._number)
        return bool(value)

    def __getstate__(self) -> dict[str, Any]:
        """Copy without what is under way."""
        return self.__dict__ | {"_under_way": None}


def start_on_cuda(number: Tensor) -> Transfer:
    """Start a transfer from a CUDA device."""
    with torch.cuda.device(number.device):
        value = number.to("cpu", non_blocking=True)  # pinned memory, so nothing waits
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch ships no type of it
        event.record()
    return value, event.query
