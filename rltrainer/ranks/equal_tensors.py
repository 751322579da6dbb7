"""Tensors that must be equal in all ranks: checksums find a difference, and the first rank's numbers replace it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rltrainer.errors import RanksDifferError
from rltrainer.ranks.ranks import Ranks

TOLERANCE = 1e-3
"""Largest difference by rounding on machines of several kinds, relative to the largest number of a tensor."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@torch.no_grad()
def make_equal(named: Mapping[Tensor, str], ranks: Ranks, machine: str | None = None) -> None:
    """Give all ranks the first one's numbers in some tensors; equal ones cost checksums and one exchange.

    With a `machine`, on which rounding depends, a difference is a `RanksDifferError` on all ranks, unless machines
    differ and it is small.
    """
    if not named:
        return
    device = next(iter(named)).device
    bits = (x.reshape(-1).view(INTEGERS.get(x.element_size(), torch.int64)) for x in named)
    of_all = torch.stack(ranks.gather(torch.stack([x.sum(dtype=torch.int64).to(device) for x in bits]), is_equal=True))
    are_equal = (of_all == of_all[0]).all(0).tolist()
    if all(are_equal):
        return
    tolerance = TOLERANCE if machine is not None and len(set(ranks.from_all(machine))) > 1 else 0.0
    for x, name in (item for item, is_equal in zip(named.items(), are_equal, strict=True) if not is_equal):
        found = torch.stack(ranks.gather(x.detach(), is_equal=True)).double().view(ranks.world, -1)
        change = (found - found[0]).abs().amax(1)
        if machine is not None and not change.max() <= tolerance * found[0].abs().max():  # so NaN differs, too
            rank = int(change.argmax())
            text = f"must be equal in all ranks; rank {rank} of {ranks.world} differs from rank 0"
            hint = "Hooks run in each shard, with its data: change weights in a callback such as training_fn."
            raise RanksDifferError(f"{name}: {text} by up to {float(change[rank]):g}. {hint}")
        x.copy_(found[0].view_as(x))
