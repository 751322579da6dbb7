"""Gradients that are not finite, and parameters without a gradient: noted in a step, reported after the update."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rltrainer.errors import ParamsError

Transfer = tuple[Tensor, Callable[[], bool]]
"""A copy on the host, and a function that returns whether it has arrived."""


class BadGradients:
    """Gradients that an optimizer has left out because they were not finite, given the sizes of its parameters."""

    # They are looked at once per update step, on CUDA without waiting for the device.

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.gradient = torch.zeros(sum(sizes), device=device)  # the last bad one, which names a parameter
        self.loss, self.num = torch.zeros((), device=device), torch.zeros((), device=device)
        self.are_skipped = False  # only counted in `num`, and never an error
        self._sizes = list(sizes)
        self._delayed = DeviceFlag(self.num, start_on_cuda) if device.type == "cuda" else None

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the copy's state without the plan: the copy is another algorithm's."""
        vars(self).update(state)
        self.follow(skips=False)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that a step changes."""
        return [self.gradient, self.loss, self.num]

    def follow(self, skips: bool) -> None:
        """Skip bad gradients from now on, or report them."""
        if self.are_skipped and not skips:
            self.num.zero_()  # skipped ones are no faults now
        self.are_skipped = skips

    def note(self, gradient: Tensor, loss: Tensor, is_finite: Tensor) -> None:
        """Keep a gradient [P] and its loss if it is not finite, without a branch."""
        if not self.are_skipped:
            self.gradient.copy_(torch.where(is_finite, self.gradient, gradient))
            self.loss.copy_(torch.where(is_finite, self.loss, loss))
        self.num.add_(~is_finite)

    def take(self, wait: bool) -> tuple[int | None, float] | None:
        """Return the first bad parameter and the loss, if a gradient was not finite since the last call.

        The parameter is None if each is finite and their norm is not. Without `wait`, a later call may report the fault
        of a device; the CPU is never waited for.
        """
        if self.are_skipped or not (self.num if self._delayed is None else self._delayed.was_nonzero(wait)):
            return None
        bad = (~torch.isfinite(self.gradient)).nonzero()
        ends = torch.tensor(self._sizes, device=self.gradient.device).cumsum(0)
        first = int(torch.searchsorted(ends, bad[0, 0], right=True)) if len(bad) else None
        self.num.zero_()
        self.gradient.zero_()
        return first, float(self.loss)


class DeviceFlag:
    """A look at whether a scalar on a device was non-zero a while ago, without waiting for the device.

    `start` starts a transfer of it to the host.
    """

    def __init__(self, number: Tensor, start: Callable[[Tensor], Transfer]) -> None:
        self._number, self._start = number, start
        self._under_way: Transfer | None = None

    def was_nonzero(self, wait: bool) -> bool:
        """Return whether it was non-zero when the newest copy that has arrived was started; now, if `wait`."""
        if wait:
            self._under_way = None
            return bool(self._number)
        if self._under_way is None:
            self._under_way = self._start(self._number)
            return False
        value, has_arrived = self._under_way
        if not has_arrived():
            return False
        # The owner sets a number that was seen to zero: a copy that starts before would report it twice.
        self._under_way = None if value else self._start(self._number)
        return bool(value)

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the transfer."""
        return self.__dict__ | {"_under_way": None}


def start_on_cuda(number: Tensor) -> Transfer:
    """Start a transfer from a CUDA device."""
    with torch.cuda.device(number.device):
        value = number.to("cpu", non_blocking=True)  # pinned memory, so nothing waits
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch ships no type of it
        event.record()
    return value, event.query


class UnusedParameters:
    """Parameters that a loss does not depend on: noted by number, in a traced step too, and named once."""

    def __init__(
        self, modules: Mapping[str, nn.Module], parameters: Sequence[nn.Parameter], names: Mapping[nn.Parameter, str]
    ) -> None:
        self._by_name, self._trained, self._names = modules, parameters, names
        self._last, self._named = list[int](), set[int]()

    @property
    def last(self) -> list[Tensor]:
        """Unused parameters of the last step that had any."""
        return [self._trained[i] for i in self._last]

    def note(self, unused: Sequence[Tensor]) -> None:
        """Remember these as the unused ones of a step."""
        found = dict.fromkeys(unused)
        self._last = [i for i, parameter in enumerate(self._trained) if parameter in found]

    def report(self, owner: str) -> None:
        """Warn of new ones.

        Raises:
            ParamsError: one is no longer in the modules, so that another one in its place would not be trained; or the
                loss depends on none at all.
        """
        new = {i: self._names[self._trained[i]] for i in self._last if i not in self._named}
        if not new:
            return
        present = {id(parameter) for module in self._by_name.values() for parameter in module.parameters()}
        for i, name in new.items():
            if id(self._trained[i]) not in present:
                text = "must stay the same object while it is trained; another one took its place"
                raise ParamsError(f"{owner}: {name} {text}. Copy into it, or build the algorithm again.")
        names = ", ".join(new.values())
        if not any(p.requires_grad for i, p in enumerate(self._trained) if i not in self._last):
            raise ParamsError(f"{owner}: a loss must depend on what its optimizer trains; it does not on {names}.")
        self._named.update(new)
        hint = "Freeze what should not be trained (requires_grad_(False))."
        warnings.warn(f"{owner}: the loss does not depend on {names}, which stay as they are. {hint}", stacklevel=2)
