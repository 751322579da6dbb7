"""A look for numbers in transitions that are not finite."""

import torch

from rltrainer.errors import NonFiniteError
from rltrainer.tree import named_leaves
from rltrainer.types import Transitions


def check_finite(batch: Transitions) -> None:
    """Look for NaN and infinity.

    Raises:
        NonFiniteError: naming the leaf and the `index` of the first such transition.
    """
    for name in ("obs", "action", "reward", "next_obs"):
        for path, leaf in named_leaves(getattr(batch, name), name):
            bad = (~torch.isfinite(leaf)).nonzero()
            if len(bad):
                index, value = int(batch.index[bad[0, 0]]), float(leaf[tuple(bad[0])])
                hint = "Leave it out, or replace it, before training."
                raise NonFiniteError(f"ReplayBuffer: transition {index}: {path} = {value}. {hint}")
