"""Random numbers of a decision: drawn when they are asked for, or before, for code that is compiled or recorded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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
