"""Losses, the weighted means they are made of, and distributions of returns: atoms (C51), quantiles (QR-DQN, TQC)."""

import torch
from torch import Tensor
from torch.nn import functional as F


def weighted_mean(x: Tensor, weight: Tensor, total: Tensor | None = None) -> Tensor:
    """Return the mean of `x` [..., B] under `weight` [B], 0 for padding; `total` [] is the sum of the weights."""
    return (x * weight).sum(-1) / (weight.sum() if total is None else total)


def standardize(x: Tensor, weight: Tensor, eps: float = 1e-8) -> Tensor:
    """Shift and scale `x` [B] to weighted mean 0 and standard deviation 1 (unbiased, as `Tensor.std`)."""
    total = weight.sum()
    centred = x - weighted_mean(x, weight, total)
    variance = (centred.square() * weight).sum() / (total - 1).clamp(min=1)
    return centred / (variance.sqrt() + eps)


def explained_variance(prediction: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """Return 1 - Var(target - prediction) / Var(target) under `weight` [B], and 0 where the target does not vary."""
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
    """Return the Huber loss of errors [...]: quadratic within `delta`, linear outside (Mnih et al. 2015)."""
    return F.huber_loss(error, error.new_zeros(()).expand_as(error), reduction="none", delta=delta)


def expectile(error: Tensor, tau: float) -> Tensor:
    """Return |tau - 1(error < 0)| * error^2 for errors [...] (Kostrikov et al. 2022, Implicit Q-Learning, eq. 3)."""
    asymmetry = (error.detach() > 0).to(error.dtype) * (2 * tau - 1) + (1 - tau)
    return asymmetry * error.square()


def project(support: Tensor, probability: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Return the distribution of reward + discount * z as probabilities of the atoms z [B, K].

    Args:
        support: [K], the atoms in ascending order, evenly spaced.
        probability: [B, K], of each atom after the transition.
        reward, discount: [B]; the discount is 0 after a terminal transition.
    """
    # Bellemare et al. 2017, A Distributional Perspective on Reinforcement Learning, eq. 7.
    # Atom j moves to reward + discount * z_j, clipped to the support, and shares its probability among the two nearest
    # atoms: max(0, 1 - distance / spacing). Rounding down and up would lose it if an atom lands on another one.
    low, high = support[0], support[-1]
    moved = (reward.unsqueeze(1) + discount.unsqueeze(1) * support).clamp(low, high)
    place = (moved - low) * ((len(support) - 1) / (high - low))  # in atoms
    atom = torch.arange(len(support), device=support.device)
    share = (1 - (place.unsqueeze(1) - atom.unsqueeze(1)).abs()).clamp(min=0)  # [B, to, from]
    # A sum, not a matrix product: a graph then needs no memory of [B, K, K].
    return (share * probability.unsqueeze(1)).sum(2)


def midpoints(quantiles: Tensor) -> Tensor:
    """Return the fractions (2i + 1) / 2K [K] at which K quantiles [..., K] approximate a distribution best."""
    # Dabney et al. 2018, Distributional Reinforcement Learning with Quantile Regression, lemma 2.
    num_quantiles = quantiles.shape[-1]
    return (torch.arange(num_quantiles, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / num_quantiles


def quantile_huber(current: Tensor, tau: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Return the quantile Huber loss [...], summed over current quantiles and averaged over target quantiles.

    Args:
        current: [..., N], estimated quantiles of the fractions `tau` [N] or [..., N] in (0, 1).
        target: [..., M], samples or quantiles of the target; without gradient.
        kappa: the loss is linear beyond this error.
    """
    # |tau_i - 1(error_ij < 0)| * huber(error_ij) / kappa with error_ij = target_j - current_i (Dabney et al. 2018,
    # QR-DQN, eq. 10; Implicit Quantile Networks, eq. 3).
    error = target.unsqueeze(-2) - current.unsqueeze(-1)
    weight = (tau.unsqueeze(-1) - (error < 0).to(error.dtype)).abs()
    return (weight * huber(error, kappa)).mean(-1).sum(-1) / kappa
