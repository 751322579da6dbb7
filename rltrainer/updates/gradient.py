"""The gradient of a step, which transforms change between its loss and its parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rltrainer.functional.scalars import computed_once

Parts = tuple[Tensor, ...] | list[Tensor]


@dataclass(slots=True)
class Gradient:
    """A gradient in parts, or as a vector.

    On the host it has parts, and a transform looks at numbers where that is quickest. In a graph, and on a device that
    a look would wait for, it becomes a vector.
    """

    parameters: Sequence[Tensor]  # all of the optimizer, in their order in a vector
    trained: Sequence[Tensor]
    parts: Parts  # one for each of `trained`
    loss: Tensor
    doubtful: Sequence[Tensor]  # of `trained`: without a gradient here, perhaps with one in other steps or ranks
    is_flat: bool  # whether it becomes a vector
    vector: Tensor | None = None  # [P], in place of the parts
    applies: Tensor | None = None  # of a vector: whether to take the step
    norm: Tensor | None = None  # before it is limited; None also if no limit is near

    def joined(self, *more: Tensor) -> Tensor:
        """Return the vector [P], with zeros for what is not trained; or the parts and more numbers."""
        if self.vector is not None:
            return self.vector
        parts: Parts = self.parts
        if len(self.trained) < len(self.parameters):
            found = dict(zip(self.trained, parts, strict=True))
            parts = [found[p] if p in found else torch.zeros_like(p) for p in self.parameters]
        return torch.cat([x.flatten() for x in (*parts, *more)])

    def split(self, vector: Tensor) -> list[Tensor]:
        """Return the parts in a vector [P], as views."""
        parts = zip(self.parameters, torch.split(vector, [p.numel() for p in self.parameters]), strict=True)
        if len(self.trained) == len(self.parameters):
            return [part.view_as(p) for p, part in parts]
        found = dict.fromkeys(self.trained)
        return [part.view_as(p) for p, part in parts if p in found]

    def put(self, vector: Tensor) -> None:
        """Take the numbers of a vector [P]."""
        if self.is_flat:
            self.vector = vector
        else:
            self.parts = self.split(vector)

    def scale(self, factor: Tensor) -> None:
        """Multiply all numbers."""
        # Not in place: two parameters may share one gradient, which may even be the user's own data.
        if self.vector is None:
            self.parts = torch._foreach_mul(self.parts, factor)
        else:
            self.vector = self.vector * computed_once(factor)

    def leave_out_zeros(self) -> None:
        """Train no doubtful parameter whose gradient is 0."""
        doubtful = dict.fromkeys(self.doubtful)
        kept = [(p, x) for p, x in zip(self.trained, self.parts, strict=True) if p not in doubtful or x.any()]
        self.trained, self.parts = [p for p, _ in kept], [x for _, x in kept]
