"""Trees of tensors in a state: stored by the path of each leaf, checked before they are believed, then loaded."""

import torch
from torch import Tensor

from rltrainer.errors import ReplayBufferError, readable
from rltrainer.tree import Tree, named_leaves, rebuild
from rltrainer.types import Load, State


def check_tree(state: State, name: str, specs: Tree, shape: tuple[int, ...]) -> Tree:
    """Return the tree of `state[name]`, which holds a tensor `[*shape, ...]` per leaf of the specs.

    Raises:
        ReplayBufferError: a leaf is missing or one too many, or has another shape or dtype.
    """
    expected, found = dict(named_leaves(specs)), state.get(name)
    names = list(found) if isinstance(found, dict) else found
    is_complete = isinstance(found, dict) and found.keys() == expected.keys()
    require(is_complete, f"{name}: expected the leaves {list(expected)}, found {names}")
    tensors = [check_tensor(state[name], path, spec.dtype, shape + spec.shape) for path, spec in expected.items()]
    return rebuild(specs, tensors)


def check_tensor(state: State, name: str, dtype: torch.dtype, shape: tuple[int, ...] | None) -> Tensor:
    """Return a tensor of the state; `shape` None stands for a vector of any length.

    Raises:
        ReplayBufferError: it is missing, or has another shape or dtype.
    """
    value = state.get(name)
    if not isinstance(value, Tensor):
        raise ReplayBufferError(f"{name}: expected a tensor, found {readable(value)}")
    fits = value.ndim == 1 if shape is None else tuple(value.shape) == shape
    expected = f"{dtype} {'[K]' if shape is None else shape}"
    require(fits and value.dtype == dtype, f"{name}: expected {expected}, found {value.dtype} {tuple(value.shape)}")
    return value


def require(condition: bool, text: str) -> None:
    """Raise a `ReplayBufferError` with this text unless the condition holds."""
    if not condition:
        raise ReplayBufferError(text)


def in_order(*loads: Load) -> Load:
    """Return what makes these loads one after another."""

    def load() -> None:
        for each in loads:
            each()

    return load
