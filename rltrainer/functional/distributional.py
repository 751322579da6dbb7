"""Distributions of returns: as probabilities of fixed atoms (C51), as quantiles (QR-DQN, TQC)."""

import torch
from torch import Tensor

from rltrainer.functional.losses import huber


def project(support: Tensor, probability: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Return the distribution of reward + discount * z as probabilities of the atoms (Bellemare et al. 2017, eq. 7).

    Atom j moves to reward + discount * z_j, clipped to the support, and shares its probability among the two atoms
    beside that place, the nearer one getting more: max(0, 1 - distance / spacing). So written it loses nothing where
    an atom lands on another one, as rounding down and up does. Takes [B, K, K] numbers in memory, where it is not
    compiled.

    Args:
        support: [K], the atoms z in ascending order, evenly spaced.
        probability: [B, K], of each atom after the transition.
        reward: [B].
        discount: [B], 0 after a terminal transition.

    Returns:
        probabilities [B, K].
    """
    low, high = support[0], support[-1]
    moved = (reward.unsqueeze(1) + discount.unsqueeze(1) * support).clamp(low, high)
    place = (moved - low) * ((len(support) - 1) / (high - low))  # in atoms
    atom = torch.arange(len(support), device=support.device)
    share = (1 - (place.unsqueeze(1) - atom.unsqueeze(1)).abs()).clamp(min=0)  # [B, to, from]
    # A sum, not a matrix product: a graph then holds no [B, K, K] numbers at all.
    return (share * probability.unsqueeze(1)).sum(2)


def midpoints(quantiles: Tensor) -> Tensor:
    """Return the fractions (2i + 1) / 2K [K] that K quantiles [..., K] approximate a distribution best at.

    Dabney et al. 2018, Distributional Reinforcement Learning with Quantile Regression, lemma 2.
    """
    num_quantiles = quantiles.shape[-1]
    return (torch.arange(num_quantiles, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / num_quantiles


def quantile_huber(current: Tensor, tau: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """Return the quantile Huber loss, summed over current quantiles and averaged over those of the target.

    |tau_i - 1(error_ij < 0)| * huber(error_ij) / kappa with error_ij = target_j - current_i
    (Dabney et al. 2018, Distributional Reinforcement Learning with Quantile Regression, eq. 10; Implicit Quantile
    Networks, eq. 3).

    Args:
        current: [..., N], estimated quantiles.
        tau: [N] or [..., N], the fraction in (0, 1) that each of them is for.
        target: [..., M], samples or quantiles of the target; without gradient.
        kappa: error from which on the loss is linear.

    Returns:
        one loss for each distribution [...].
    """
    error = target.unsqueeze(-2) - current.unsqueeze(-1)
    weight = (tau.unsqueeze(-1) - (error < 0).to(error.dtype)).abs()
    return (weight * huber(error, kappa)).mean(-1).sum(-1) / kappa
