"""Distributions of returns: as probabilities of fixed atoms (C51), as quantiles (QR-DQN, TQC)."""

from torch import Tensor

from rltrainer.functional.losses import huber


def project(support: Tensor, probability: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
    """Return the distribution of reward + discount * z as probabilities of the atoms (Bellemare et al. 2017, eq. 7).

    Atom j moves to reward + discount * z_j, clipped to the support, and shares its probability among the two atoms
    beside that place, the nearer one getting more: max(0, 1 - distance / spacing). So written it loses nothing where
    an atom lands on another one, as rounding down and up does. Takes [B, K, K] numbers in memory.

    Args:
        support: [K], the atoms z in ascending order, evenly spaced.
        probability: [B, K], of each atom after the transition.
        reward: [B].
        discount: [B], 0 after a terminal transition.

    Returns:
        probabilities [B, K].
    """
    low, high = support[0], support[-1]
    spacing = (high - low) / (len(support) - 1)
    moved = (reward.unsqueeze(1) + discount.unsqueeze(1) * support).clamp(low, high)
    share = 1 - (moved.unsqueeze(1) - support.unsqueeze(1)).abs() / spacing  # [B, to, from]
    return (share.clamp(min=0) @ probability.unsqueeze(2)).squeeze(2)


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
