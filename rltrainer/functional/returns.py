"""Advantage and return estimators over rollouts [T, N]."""

import torch
from torch import Tensor


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, ends: Tensor, gamma: float, lambda_: float
) -> tuple[Tensor, Tensor]:
    """Estimate advantages and returns (Schulman et al. 2016, Generalized Advantage Estimation, eq. 16).

    delta_t = r_t + gamma * (1 - terminated_t) * V(next_obs_t) - V(obs_t)
    A_t = delta_t + gamma * lambda * (1 - ends_t) * A_{t+1}

    `terminated` stops bootstrapping; `ends` (terminated, truncated or cut) only cuts the trace, so that a time limit
    does not teach the critic that the future is worth nothing.

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
    keep = (gamma * lambda_) * (~ends).to(reward.dtype)
    advantage = torch.empty_like(delta)
    trace = torch.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        trace = torch.addcmul(delta[t], keep[t], trace, out=advantage[t])
    return advantage, advantage + value


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
    running, out = initial, torch.empty_like(reward)
    for t in range(len(reward)):
        out[t] = gamma * running + reward[t]
        running = out[t] * ~ends[t]
    return out, running
