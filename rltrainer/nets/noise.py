"""Random numbers of a decision: drawn when they are asked for, or before, for code that is compiled or recorded.

They may also be kept for several steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn


@dataclass(frozen=True)
class Draw:
    """A call that fills a tensor with random numbers, such as `normal_`, and the tensor's shape and dtype."""

    method: str
    arguments: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    def numbers(self, device: torch.device, generator: torch.Generator | None, *leading: int) -> Tensor:
        """Return random numbers [*leading, *shape]."""
        empty = torch.empty((*leading, *self.shape), dtype=self.dtype, device=device)
        filled: Tensor = getattr(empty, self.method)(*self.arguments, generator=generator)
        return filled


class DrawnNumbers:
    """Stands for a generator: hands out numbers that were drawn before, in their order."""

    def __init__(self, numbers: Sequence[Tensor]) -> None:
        self._numbers, self._next = numbers, 0

    def take(self, draw: Draw, device: torch.device) -> Tensor:
        """Return the next numbers, of the shape of `draw`."""
        self._next += 1
        return self._numbers[self._next - 1]


class DrawRecord(DrawnNumbers):
    """Stands for a generator: draws, and remembers each call in `draws`."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__([])
        self.draws: list[Draw] = []
        self._generator = generator

    def take(self, draw: Draw, device: torch.device) -> Tensor:
        """Draw numbers of the shape of `draw` now."""
        self.draws.append(draw)
        return draw.numbers(device, self._generator)


def draw_like(x: Tensor, generator: object, method: str, *arguments: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random numbers of a tensor's shape, on its device: from a generator, or `DrawnNumbers`."""
    if isinstance(generator, DrawnNumbers):
        return generator.take(Draw(method, arguments, tuple(x.shape), dtype), x.device)
    filled: Tensor = getattr(torch.empty_like(x, dtype=dtype), method)(*arguments, generator=generator)
    return filled


class RepeatedNoise(nn.Module):
    """Standard normal numbers [N, A] of which each env keeps its own for n steps: P(n) ~ n^-2, n <= `max_steps`.

    Source: Kim et al. 2026, FlashSAC, which draws one n for all envs.
    """

    shares: Tensor

    def __init__(self, num_actions: int, max_steps: int) -> None:
        super().__init__()
        self.num_actions = num_actions
        chances = torch.arange(1.0, max_steps + 1, dtype=torch.float64).pow(-2)
        shares = (chances.cumsum(0) / chances.sum())[:-1].float()  # P(n <= 1), P(n <= 2), ...; the last is sure
        self.register_buffer("shares", shares, persistent=False)

    def initial_state(self, num_envs: int) -> Tensor:
        """Return the memory at the start of an episode: steps that its numbers are kept for, and they [N, 1 + A]."""
        return torch.zeros(num_envs, 1 + self.num_actions, device=self.shares.device)

    def step(self, state: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Return the numbers [N, A] of a step, and the next memory [N, 1 + A]."""
        num_left, kept = state[:, :1], state[:, 1:]
        chance, drawn = draw_like(num_left, generator, "uniform_"), draw_like(kept, generator, "normal_")
        is_due = num_left == 0
        num_steps = 1 + (chance >= self.shares).sum(1, keepdim=True)
        noise = torch.where(is_due, drawn, kept)
        return noise, torch.cat([torch.where(is_due, num_steps, num_left) - 1, noise], 1)
