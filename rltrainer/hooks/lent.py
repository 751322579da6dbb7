"""Copies of what a run uses after it was shown to code of the user's."""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from rltrainer.tree import map_tree

_PACKAGE = f"{__name__.partition('.')[0]}."


def lent(value: Any) -> Any:
    """Return a copy of a batch, of statistics or of a result, with arrays and tensors of its own."""
    if not dataclasses.is_dataclass(value):
        return map_tree(_copy, value)
    kind: Any = type(value)
    new = object.__new__(kind)  # what was checked is not checked again: this may be done in each gradient step
    for name in _field_names(kind):
        part = getattr(value, name)
        object.__setattr__(new, name, part.clone() if type(part) is Tensor else map_tree(_copy, part))
    return new


def is_ours(function: Any) -> bool:
    """Return whether a function or method is of this library: its hooks change nothing in place, and need no copy."""
    return (getattr(function, "__module__", None) or "").startswith(_PACKAGE)


@cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
