"""Checks of what a hook returns or logs: of the right kind, and of one shape in all its parts."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rltrainer.algorithms import Samples
from rltrainer.tree import leaves
from rltrainer.types import Rollout, Transitions

SHOW = "log_pbar"
"""The name in a mapping that says whether its numbers are shown on the progress bar."""
ARE_NUMBERS = "must be a mapping from names to numbers"
OF_CELLS = frozenset(field.name for cls in (Rollout, Transitions, Samples) for field in dataclasses.fields(cls)) - {
    "last_obs",
    "final_obs",
    "final_index",
    "starts",
}
"""Fields of batches that have the batch's axes first."""


def are_numbers(values: object) -> bool:
    """Return whether this is a mapping from names to numbers, of a hook to a log; scalar tensors are numbers."""
    return isinstance(values, Mapping) and all(map(_is_item, values.items()))


def misshapen(batch: Any) -> str | None:
    """Return which part of a batch is no tensor, or has other cells than the rest; None if all fits."""
    if not isinstance(batch, Rollout | Transitions | Samples):
        return None  # of an algorithm of the user's
    cells = batch.valid if isinstance(batch, Rollout) else batch.weight
    for name in [field.name for field in dataclasses.fields(batch) if field.name in OF_CELLS]:
        for leaf in leaves(getattr(batch, name)):
            if not isinstance(leaf, Tensor):
                return f"{name} is a {type(leaf).__name__}, not a tensor"
            if leaf.shape[: cells.dim()] != cells.shape:
                return f"{name} has shape {tuple(leaf.shape)}, of {tuple(cells.shape)} cells"
    return None


def _is_item(item: tuple[Any, Any]) -> bool:
    name, value = item
    return isinstance(name, str) and (name == SHOW or (hasattr(value, "__float__") and not getattr(value, "shape", ())))
