"""A look for NaN and infinity in all that a replay buffer holds."""

import torch

from rltrainer.data.ring import Ring
from rltrainer.errors import NonFiniteError
from rltrainer.tree import named_leaves


def check_finite(ring: Ring, chunk_size: int) -> None:
    """Raise a `NonFiniteError` that names leaf and index of the first transition with NaN or infinity."""
    for cells in ring.all_cells(chunk_size):
        batch = ring.transitions(cells, 1, 1.0)
        for name in ("obs", "action", "reward", "next_obs"):
            for path, leaf in named_leaves(getattr(batch, name), name):
                bad = (~torch.isfinite(leaf)).nonzero()
                if len(bad):
                    index, value = int(cells[bad[0, 0]]), float(leaf[tuple(bad[0])])
                    hint = "Leave it out, or replace it, before training."
                    raise NonFiniteError(f"ReplayBuffer: transition {index}: {path} = {value}. {hint}")
