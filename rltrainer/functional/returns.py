"""Advantage and return estimators over rollouts [T, N]."""

import torch
from torch import Tensor

# A recurrence over at most so many rows goes row by row.
FEW_ROWS = 24


def gae(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, ends: Tensor, gamma: float, lambda_: float
) -> tuple[Tensor, Tensor]:
    """Estimate advantages and returns, both [T, N] (Schulman et al. 2016, Generalized Advantage Estimation, eq. 16).

    `next_value` belongs to the true successor. `terminated` stops bootstrapping; `ends` (terminated, truncated or a
    boundary) only ends the trajectory, so that a time limit does not teach the critic that the future is worth nothing.
    """
    # delta_t = r_t + gamma * (1 - terminated_t) * V(next_obs_t) - V(obs_t)
    # A_t = delta_t + gamma * lambda * (1 - ends_t) * A_{t+1}
    delta = reward + gamma * next_value.masked_fill(terminated, 0.0) - value
    keep = torch.full_like(reward, gamma * lambda_).masked_fill_(ends, 0.0)
    advantage = backward_recurrence(delta, keep)
    return advantage, advantage + value


def vtrace(
    reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, ends: Tensor, ratio: Tensor,
    lambda_: float = 1.0, rho_bar: float = 1.0, c_bar: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Estimate advantages and returns, both [T, N], of a policy from another one's actions (Espeholt et al. 2018).

    With lambda = 1 the advantage is the paper's rho_t * (r_t + gamma * v_{t+1} - V(obs_t)), where v_{t+1} is
    V(next_obs_t) at the end of a trajectory: truncation bootstraps from the true successor, termination by `discount`
    not at all. Lambda (remark 2) mixes the next target with V(next_obs_t) too, as in rlax: with all ratios 1 this is
    `gae`.

    Args:
        discount: [T, N], gamma * (not terminated).
        ratio: [T, N], the policy's probability of the action over the acting policy's.
        rho_bar: clips the ratios that weigh errors: the learned value is the value of a policy between the acting one
            (0) and this one (infinity).
        c_bar: clips the ratios along a trajectory: how fast errors spread, not their limit.
    """
    # IMPALA, section 4, eq. 1 as in remark 1, with e_t = v_t - V(obs_t), rho_t = min(rho_bar, ratio_t) and c_t alike:
    # delta_t = r_t + discount_t * V(next_obs_t) - V(obs_t)
    # e_t = rho_t * delta_t + discount_t * lambda * c_t * (1 - ends_t) * e_{t+1}
    # A_t = rho_t * (delta_t + discount_t * lambda * (1 - ends_t) * e_{t+1})
    rho, c = ratio.clamp(max=rho_bar), ratio.clamp(max=c_bar)
    delta = reward + discount * next_value - value
    keep = (lambda_ * discount).masked_fill(ends, 0.0)
    error = backward_recurrence(rho * delta, keep * c)
    next_error = torch.cat([error[1:], torch.zeros_like(error[:1])])
    return rho * (delta + keep * next_error), value + error


def backward_recurrence(x: Tensor, keep: Tensor) -> Tensor:
    """Return y_t = x_t + keep_t * y_{t+1} [T, N], with y_T = 0."""
    # Many rows are summed in about log2(T) rounds, each of which doubles the span of rows in y_t (Hillis & Steele
    # 1986, Data Parallel Algorithms).
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
    """Accumulate R_t = gamma * R_{t-1} + r_t forwards in time, from `initial` [N] on, and from 0 after each end.

    Returns R [T, N], and `initial` of the next rollout [N].
    """
    # keep is 0 in a row after an end, so that R starts again; the first row continues `initial`.
    keep = gamma * torch.cat([torch.ones_like(ends[:1]), ~ends[:-1]]).to(reward.dtype)
    first = torch.addcmul(reward[:1], keep[:1], initial)
    returns = backward_recurrence(torch.cat([first, reward[1:]]).flip(0), keep.flip(0)).flip(0)
    return returns, returns[-1] * ~ends[-1]
