"""Windows of n steps: what a path of cells is worth, where it ends, and how far a bootstrapped value is discounted."""

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


def n_step_windows(path: Tensor, inside: Tensor, reward: Tensor, gamma: float) -> Windows:
    """Lay a window over each path.

    Args:
        path: [n, B] int64, cells that follow each other.
        inside: [n, B] bool, which of them belong to the window: the first, and those after it up to an end.
        reward: [n, B] float32, of these cells.
        gamma: discount of one step.
    """
    length = inside.sum(0)
    powers = (gamma ** torch.arange(len(path) + 1, device=path.device, dtype=torch.float64)).float()
    # What lies beyond the window is selected away, as 0 * nan is nan.
    rewards = torch.where(inside, reward, 0.0)
    last = path.gather(0, (length - 1).unsqueeze(0)).squeeze(0)
    return Windows(last, (powers[:-1].unsqueeze(1) * rewards).sum(0), powers.index_select(0, length))
