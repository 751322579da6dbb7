"""The size of a gradient: how it is measured, and what is done where it is above a limit."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rltrainer.functional.scalars import computed_once
from rltrainer.plan import UpdateParams


@dataclass(frozen=True)
class GradientLimit:
    """A limit of a flat gradient: of its norm, or of each number in it.

    Args:
        max_norm: gradients of a larger norm are scaled down to it; None does not.
        norm_type: the p of the norm.
        max_value: numbers are clipped to [-max_value, max_value]; None does not.
    """

    max_norm: float | None = None
    norm_type: float = 2.0
    max_value: float | None = None

    @classmethod
    def of(cls, update: UpdateParams, own: float | None) -> "GradientLimit":
        """Return the limit that a plan's params set; where they set none, the algorithm's own limit of the norm."""
        if update.max_grad_value is not None:
            return cls(None, update.grad_norm_type, update.max_grad_value)
        return cls(own if update.max_grad_norm is None else update.max_grad_norm, update.grad_norm_type)

    def balanced(self, parts: Tensor) -> Tensor:
        """Return the sum [P] of gradients [K, P] that all have the same norm, an equal share of the limit."""
        norms = torch.stack([self.norm(part, torch.linalg.vector_norm(part)) for part in parts.unbind()])
        scale = (self.max_norm or 0.0) / len(parts) / torch.where(norms == 0, 1.0, norms)
        return scale @ parts

    def norm(self, gradient: Tensor, length: Tensor) -> Tensor:
        """Return the norm of a gradient [P], given its length, the norm of type 2."""
        if self.norm_type == 2:
            return length
        largest: Tensor = torch.linalg.vector_norm(gradient, math.inf)
        if self.norm_type == math.inf:
            return largest
        # In shares of the largest number: a high power of the numbers themselves would be infinite, or 0.
        share = gradient / torch.where(largest > 0, largest, 1.0)
        norm: Tensor = torch.linalg.vector_norm(share, self.norm_type)
        return largest * norm

    def clip(self, gradient: Tensor, norm: Tensor) -> Tensor:
        """Return a gradient [P] within the limit, given its norm."""
        if self.max_value is not None:
            return gradient.clamp(-self.max_value, self.max_value)
        if self.max_norm is None:
            return gradient
        return gradient * computed_once((self.max_norm / (norm + 1e-6)).clamp(max=1.0))
