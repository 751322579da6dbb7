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


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    ends: Tensor,
    ratio: Tensor,
    lambda_: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Estimate advantages and returns of a policy from what another one did (Espeholt et al. 2018, IMPALA, section 4).

    rho_t = min(rho_bar, pi(a_t|s_t) / mu(a_t|s_t)), c_t = min(c_bar, pi(a_t|s_t) / mu(a_t|s_t))
    delta_t = r_t + discount_t * V(next_obs_t) - V(obs_t)
    e_t = rho_t * delta_t + discount_t * lambda * c_t * (1 - ends_t) * e_{t+1}   (eq. 1 as in remark 1, v_t - V(obs_t))
    A_t = rho_t * (delta_t + discount_t * lambda * (1 - ends_t) * e_{t+1})

    With lambda = 1 the advantage is the paper's rho_t * (r_t + gamma * v_{t+1} - V(obs_t)), where v_{t+1} is
    V(next_obs_t) where the trace ends: so truncation bootstraps from the true successor, termination by `discount` not
    at all. Lambda is that of remark 2, and the next target is mixed with V(next_obs_t) by it too, as in rlax: with all
    ratios 1 this is `gae`.

    Args:
        reward: [T, N].
        value: [T, N], V(obs).
        next_value: [T, N], V of the true successor.
        discount: [T, N], gamma * (not terminated).
        ends: [T, N] bool, where a trace ends.
        ratio: [T, N], pi / mu of what was done: the policy's probability over that of the policy that acted.
        lambda_: 0 gives one-step targets, 1 those of the paper.
        rho_bar: ratios are clipped to at most this where they weigh errors: what is learned is the value of a policy
            between mu (0) and pi (infinity).
        c_bar: ratios are clipped to at most this along a trace; how fast errors spread, not what they lead to.

    Returns:
        advantage and return_ = v, both [T, N].
    """
    rho, c = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
    delta = reward + discount * next_value - value
    keep = (lambda_ * discount).masked_fill(ends, 0.0)
    error = backward_recurrence(rho * delta, keep * c)
    next_error = torch.cat([error[1:], torch.zeros_like(error[:1])])
    return rho * (delta + keep * next_error), value + error


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
