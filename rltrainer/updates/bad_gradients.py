"""Gradients that were not finite: counted, and the last one kept so that an error can name a parameter."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class BadGradients:
    """Gradients that an optimizer has left out because they were not finite.

    It is looked at once per update step, on CUDA without waiting for the device.

    Args:
        sizes: numbers in each parameter.
        device: where gradient steps run.

    Attributes:
        gradient: the last bad gradient, flat.
        loss: the loss that it came from.
        num: how many there were since the last look, or in all where they are skipped.
        are_skipped: whether they are counted only, and never told.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.gradient = torch.zeros(sum(sizes), device=device)
        self.loss, self.num = torch.zeros((), device=device), torch.zeros((), device=device)
        self.are_skipped = False
        self._sizes = list(sizes)
        self._delayed = DeviceFlag(self.num, start_on_cuda) if device.type == "cuda" else None

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the plan: the copy is another algorithm's."""
        return vars(self) | {"are_skipped": False}

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that a step changes."""
        return [self.gradient, self.loss, self.num]

    @property
    def num_skipped(self) -> int:
        """The steps that were left out where the plan says "skip"; waits for the device."""
        return int(self.num) if self.are_skipped else 0

    def follow(self, skips: bool) -> None:
        """Skip bad gradients from now on, or tell of them."""
        if self.are_skipped and not skips:
            self.num.zero_()  # they were counted, not to be told now
        self.are_skipped = skips

    def note(self, gradient: Tensor, loss: Tensor, is_finite: Tensor) -> None:
        """Keep a gradient [P] and its loss if it is not finite, without a branch."""
        if not self.are_skipped:  # else nobody asks which
            self.gradient.copy_(torch.where(is_finite, self.gradient, gradient))
            self.loss.copy_(torch.where(is_finite, self.loss, loss))
        self.num.add_(~is_finite)

    def take(self, wait: bool) -> tuple[int | None, float] | None:
        """Return the first bad parameter and the loss, if a gradient was not finite since the last call.

        Args:
            wait: wait for the device; if not, a fault may be told at a later call. The CPU is never waited for.

        Returns:
            the parameter's number, None if each is finite and their norm is not; and the loss.
        """
        if self.are_skipped or not (self.num if self._delayed is None else self._delayed.was_nonzero(wait)):
            return None
        bad = (~torch.isfinite(self.gradient)).nonzero()
        ends = torch.tensor(self._sizes, device=self.gradient.device).cumsum(0)
        first = int(torch.searchsorted(ends, bad[0, 0], right=True)) if len(bad) else None
        self.num.zero_()
        self.gradient.zero_()
        return first, float(self.loss)


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
