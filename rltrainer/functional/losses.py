"""Losses and the weighted means they are made of."""

import torch
from torch import Tensor
from torch.nn import functional as F


def weighted_mean(x: Tensor, weight: Tensor, total: Tensor | None = None) -> Tensor:
    """Mean of `x` [..., B] under `weight` [B], over the last axis; cells of weight 0 (padding) do not count.

    Several means under the same weights share their sum `total` [].
    """
    return (x * weight).sum(-1) / (weight.sum() if total is None else total)


def standardize(x: Tensor, weight: Tensor, eps: float = 1e-8) -> Tensor:
    """Shift and scale `x` [B] to weighted mean 0 and standard deviation 1 (unbiased, as `Tensor.std`)."""
    total = weight.sum()
    centred = x - weighted_mean(x, weight, total)
    variance = (centred.square() * weight).sum() / (total - 1).clamp(min=1)
    return centred / (variance.sqrt() + eps)


def explained_variance(prediction: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return 1 - Var(target - prediction) / Var(target) under `weight` [B]: 1 is perfect, 0 no better than a constant.

    It is 0 where the target does not vary.
    """
    both = torch.stack([target - prediction, target])
    centred = both - (both @ weight / weight.sum()).unsqueeze(-1)
    unexplained, total = (centred.square() @ weight).unbind()
    return (1 - unexplained / total).masked_fill(total == 0, 0.0)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float | Tensor) -> Tensor:
    """Return PPO's loss per cell [B] (Schulman et al. 2017, eq. 7, negated): -min(r A, clip(r, 1 - c, 1 + c) A)."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)  # type: ignore[arg-type]  # both bounds are of one type
    return -(ratio * advantage).minimum(clipped * advantage)


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """Return the Huber loss of an error, elementwise: quadratic within `delta`, linear outside (Mnih et al. 2015)."""
    return F.huber_loss(error, error.new_zeros(()).expand_as(error), reduction="none", delta=delta)


def expectile(error: Tensor, tau: float) -> Tensor:
    """Return |tau - 1(error < 0)| * error^2, elementwise (Kostrikov et al. 2022, Implicit Q-Learning, eq. 3)."""
    asymmetry = (error.detach() > 0).to(error.dtype) * (2 * tau - 1) + (1 - tau)
    return asymmetry * error.square()
