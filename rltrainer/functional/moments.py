"""Moments of a sample, pooled from its parts' moments: count, mean and sum of squared deviations."""

import torch
from torch import Tensor


def moments(x: Tensor, weight: Tensor) -> Tensor:
    """Return the moments [3, ...] of `x` [..., B] in float64, under weights [..., B] or [B]."""
    x, weight = x.double(), weight.double().expand(x.shape)
    count = weight.sum(-1)
    mean = (x * weight).sum(-1) / count.where(count > 0, 1.0)
    return torch.stack([count, mean, ((x - mean.unsqueeze(-1)).square() * weight).sum(-1)])


def pooled(parts: Tensor) -> Tensor:
    """Return the moments [3, ...] of a sample from its parts' moments [S, 3, ...] (Chan et al. 1979)."""
    count, mean, deviations = parts.unbind(1)
    total = count.sum(0)
    whole = (count * mean).sum(0) / total.where(total > 0, 1.0)
    return torch.stack([total, whole, (deviations + count * (mean - whole).square()).sum(0)])


def standardized(x: Tensor, of_all: Tensor, eps: float = 1e-8) -> Tensor:
    """Shift and scale `x` by moments [3] to mean 0 and standard deviation 1, unbiased as by `losses.standardize`."""
    count, mean, deviations = of_all
    deviation = (deviations / (count - 1).clamp(min=1)).sqrt()
    found: Tensor = (x - mean) / (deviation + eps)
    return found.to(x.dtype)
