"""Windows of n steps: up to n rows on in the same env, shorter where the trace ends or nothing newer is stored."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Windows(NamedTuple):
    """One window per sampled cell [B].

    Args:
        last: int64, the flat index of the window's last cell.
        reward: float32, sum of gamma^i r_i over the window.
        discount: float32, gamma^k for a window of k steps.
    """

    last: Tensor
    reward: Tensor
    discount: Tensor


def n_step_windows(
    cells: Tensor, newest: Tensor, reward: Tensor, is_end: Callable[[Tensor], Tensor], *, n_step: int, gamma: float
) -> Windows:
    """Lay a window over each cell and what follows it.

    Args:
        cells: [B] int64, where the windows start, as row * N + env.
        newest: [N] int64, the newest cell of each env.
        reward: [R * N] float32, all cells.
        is_end: whether a trace ends at each of the cells it is given.
        n_step: steps of a whole window.
        gamma: discount of one step.
    """
    num_envs = len(newest)
    steps = torch.arange(n_step, device=cells.device)
    path = (cells + (steps * num_envs).unsqueeze(1)) % len(reward)  # [n, B]
    stops = is_end(path) | (path == newest.index_select(0, cells % num_envs))
    inside = torch.ones_like(stops)
    inside[1:] = stops[:-1].cumsum(0) == 0
    length = inside.sum(0)
    powers = (gamma ** torch.arange(n_step + 1, device=cells.device, dtype=torch.float64)).float()
    # Beyond the window lie other episodes and rows nobody wrote: selected away, as 0 * nan is nan.
    rewards = torch.where(inside, reward[path], 0.0)
    last = path.gather(0, (length - 1).unsqueeze(0)).squeeze(0)
    return Windows(last, (powers[:-1].unsqueeze(1) * rewards).sum(0), powers.index_select(0, length))
