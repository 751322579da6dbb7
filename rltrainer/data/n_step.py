"""Windows of n steps: what a path of cells is worth, where it ends, and how far a bootstrapped value is discounted."""

import torch
from torch import Tensor


def n_step_windows(path: Tensor, inside: Tensor, reward: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Lay a window over each path.

    Args:
        path: [n, B] int64, cells that follow each other.
        inside: [n, B] bool, which of them belong to the window: the first, and those after it up to an end.
        reward: [n, B] float32, of these cells.
        gamma: discount of one step.

    Returns:
        each window's last cell [B] int64, its sum of gamma^i r_i, and gamma^k for its k steps, float32 [B].
    """
    length = inside.sum(0)
    powers = (gamma ** torch.arange(len(path) + 1, device=path.device, dtype=torch.float64)).float()
    # What lies beyond the window is selected away, as 0 * nan is nan.
    rewards = torch.where(inside, reward, 0.0)
    last = path.gather(0, (length - 1).unsqueeze(0)).squeeze(0)
    return last, (powers[:-1].unsqueeze(1) * rewards).sum(0), powers.index_select(0, length)
