"""Advantage and return estimators over rollouts [T, N]."""

import torch
from torch import Tensor

FEW_ROWS = 24
"""Up to so many, a recurrence goes row by row."""


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, ends: Tensor, gamma: float, lambda_: float
) -> tuple[Tensor, Tensor]:
    """Estimate advantages and returns (Schulman et al. 2016, Generalized Advantage Estimation, eq. 16).

    delta_t = r_t + gamma * (1 - terminated_t) * V(next_obs_t) - V(obs_t)
    A_t = delta_t + gamma * lambda * (1 - ends_t) * A_{t+1}

    `terminated` stops bootstrapping; `ends` (terminated, truncated or a boundary) only breaks the trace, so that a time
    limit does not teach the critic that the future is worth nothing.

    Args:
        reward: [T, N].
        value: [T, N], V(obs).
        next_value: [T, N], V of the true successor.
        terminated: [T, N] bool.
        ends: [T, N] bool.
        gamma: discount factor in [0, 1].
        lambda_: 0 gives one-step advantages, 1 Monte-Carlo ones.

    Returns:
        advantage and return_ = advantage + value, both [T, N].
    """
    delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    keep = torch.full_like(reward, gamma * lambda_).masked_fill_(ends, 0.0)
    advantage = backward_recurrence(delta, keep)
    return advantage, advantage + value


def backward_recurrence(x: Tensor, keep: Tensor) -> Tensor:
    """Return y_t = x_t + keep_t * y_{t+1}, with y_T = 0.

    A few rows are summed up one after the other, many in about log2(T) rounds, each of which doubles the span of rows
    that y_t holds (Hillis & Steele 1986, Data Parallel Algorithms).

    Args:
        x: [T, N].
        keep: [T, N].
    """
    if 0 < len(x) <= FEW_ROWS:
        y: list[Tensor] = []
        for row, keep_row in zip(x.unbind()[::-1], keep.unbind()[::-1], strict=True):
            y.append(torch.addcmul(row, keep_row, y[-1]) if y else row)
        return torch.stack(y[::-1])
    span = 1
    while span < len(x):
        x = torch.cat([torch.addcmul(x[:-span], keep[:-span], x[span:]), x[-span:]])
        keep = torch.cat([keep[:-span] * keep[span:], keep[-span:]])
        span *= 2
    return x


def discounted_returns(reward: Tensor, ends: Tensor, initial: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Accumulate R_t = gamma * R_{t-1} + r_t forwards in time, restarting after each end: what scales rewards.

    Args:
        reward: [T, N].
        ends: [T, N] bool, where a trace ended.
        initial: [N], R before the first row.
        gamma: discount factor.

    Returns:
        R [T, N], and what to pass as `initial` for the rollout that follows [N].
    """
    # A row after an end starts anew; the first one goes on from `initial`.
    keep = gamma * torch.cat([torch.ones_like(ends[:1]), ~ends[:-1]]).to(reward.dtype)
    first = torch.addcmul(reward[:1], keep[:1], initial)
    returns = backward_recurrence(torch.cat([first, reward[1:]]).flip(0), keep.flip(0)).flip(0)
    return returns, returns[-1] * ~ends[-1]
