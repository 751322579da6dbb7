"""Dropout whose masks are state: no random number of torch's is drawn in a gradient step, compiled or not."""

import torch
from torch import Tensor, nn

from rltrainer.functional.scalars import computed_once


class Dropout(nn.Module):
    """Sets each number to 0 with probability p in train mode, and scales the others by 1 / (1 - p).

    The masks follow from a counter, a buffer that is saved with the weights and goes on by one with every mask. So
    compiled and uncompiled steps drop the same units, and a resumed run goes on with the next mask. Source: Srivastava
    et al. 2014, Dropout.

    Args:
        p: probability in [0, 1).
    """

    num_masks: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        # Where it starts sets the masks of one layer apart from those of another.
        self.register_buffer("num_masks", torch.randint(2**31, ()))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, ...] to the same."""
        if not self.training:
            return x
        self.num_masks += 1
        position = torch.arange(x.numel(), device=x.device)
        # A graph that hashed the counter anew for each number took twice as long to compile, and longer to run.
        seed = computed_once(_mix(self.num_masks))
        number = _mix(seed + position).view(x.shape)
        return torch.where(number >= self.p * 2**32, x / (1 - self.p), 0.0)


def _mix(x: Tensor) -> Tensor:
    """Hash integers to what looks like uniform ones in [0, 2**32), in int64 without overflow."""
    for _ in range(2):
        x = x & 0xFFFFFFFF
        x = ((x >> 16) ^ x) * 0x45D9F3B
    x = x & 0xFFFFFFFF
    return (x >> 16) ^ x
