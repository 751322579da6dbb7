"""Target networks: slow copies of a network, from which its targets are computed."""

import copy
from collections.abc import Iterable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from rltrainer.functional.scalars import computed_once


class Accumulation:
    """Groups of gradient steps: the last step of a group applies the gradients of all its steps.

    An algorithm's optimizers and target networks share one. `num_steps` counts the steps of the current group, and
    `applies` is whether the current step is the last one.
    """

    def __init__(self, size: int) -> None:
        self.size, self.num_steps, self.applies = size, 0, True

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the current group, which belongs to the other algorithm."""
        return {"size": self.size, "num_steps": 0, "applies": True}

    @property
    def begins(self) -> bool:
        """True if the next step begins a group."""
        return self.num_steps == 0

    def grouped(self, steps: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of each step, followed by whether it is the last of its group."""
        for args in steps:
            self.num_steps = (self.num_steps + 1) % self.size
            yield *args, self.num_steps == 0


class TargetNetwork(nn.Module):
    """A copy of a network that follows it at each `interval`-th call. Always in eval mode."""

    # target <- (1 - tau) * target + tau * online: a slow target does not run after its own estimates (Lillicrap et al.
    # 2016, tau = 0.001; Mnih et al. 2015 copy, tau = 1, every 10,000 steps).

    num_calls: Tensor
    # Groups of the online network's gradient steps; only a step that applies gradients counts.
    accumulation: Accumulation | None = None

    def __init__(self, online: nn.Module, tau: float = 0.005, interval: int = 1) -> None:
        super().__init__()
        self.network = copy.deepcopy(online).requires_grad_(False)
        self.tau, self.interval = tau, interval
        # On the network's device: a CUDA graph repeats only operations there.
        device = next(online.parameters()).device
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64, device=device))
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: targets use no dropout, and the running statistics of batch norms."""
        return super().train(False)

    def forward(self, *args: Any) -> Any:
        """Evaluate the copy."""
        return self.network(*args)

    @torch.no_grad()
    def update(self, online: nn.Module) -> None:
        """Move towards the online network, in place."""
        if self.accumulation is not None and not self.accumulation.applies:
            return
        self.num_calls += 1
        if self.interval > 1 and (torch.compiler.is_compiling() or not self.num_calls.is_cpu):
            # Without a branch, for graphs and to not wait for a device; most steps have length 0.
            is_due = self.num_calls % self.interval == 0
            step = computed_once(self.tau * is_due)
            for target, source in zip(self.network.parameters(), online.parameters(), strict=True):
                target.lerp_(source, step)
            for buffer, value in zip(self.network.buffers(), online.buffers(), strict=True):
                buffer.copy_(torch.where(is_due, value, buffer))
        elif self.interval == 1 or self.num_calls.item() % self.interval == 0:
            torch._foreach_lerp_(list(self.network.parameters()), list(online.parameters()), self.tau)
            for buffer, value in zip(self.network.buffers(), online.buffers(), strict=True):
                buffer.copy_(value)
