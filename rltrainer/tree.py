"""Trees of arrays or tensors: an observation is a leaf, or dicts and tuples of observations."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tree = Any
"""A leaf (tensor or array), or a dict or tuple of trees. Dicts keep the order of their space."""


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to each leaf, of any shape, of `tree` (and the leaves of `others` at the same place)."""
    if isinstance(tree, dict):
        return {key: map_tree(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *items) for items in zip(tree, *others, strict=True))
    return function(tree, *others)


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply `function` to each tensor, of any shape, in a value, its items and its fields, in their order."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {name: map_tensors(function, item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        return dataclasses.replace(value, **{name: map_tensors(function, getattr(value, name)) for name in names})
    return value


def named_leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf with its path as a user would write it: `["cam"]["left"]`, `[0]`, or `` for a bare leaf."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from named_leaves(value, f'{name}["{key}"]')
    elif isinstance(tree, tuple):
        for i, value in enumerate(tree):
            yield from named_leaves(value, f"{name}[{i}]")
    else:
        yield name, tree


def rebuild(tree: Tree, new: Iterable[Any]) -> Tree:
    """Return a tree of the same form with these leaves, of any shapes, given in the order of their space."""
    rest = iter(new)
    return map_tree(lambda _: next(rest), tree)


def leaves(tree: Tree) -> list[Any]:
    """Return the leaves, of any shapes, in the order of their space."""
    return [leaf for _, leaf in named_leaves(tree)]


def packed_like(tree: Tree, device: torch.device | str, pin_memory: bool = False) -> tuple[Tensor, Tree]:
    """Return a tensor of bytes [M] for a tree of tensors, to be copied at once, and the tree of its views; all are 0.

    Only shapes and dtypes of the given tensors are read.
    """
    sizes = [-(-leaf.nbytes // 16) * 16 for leaf in leaves(tree)]  # aligned as the kernels like it
    whole = torch.zeros(sum(sizes), dtype=torch.uint8, device=device, pin_memory=pin_memory)
    parts = iter(torch.split(whole, sizes))
    return whole, map_tree(lambda leaf: next(parts)[: leaf.nbytes].view(leaf.dtype).view(leaf.shape), tree)


def is_on_host(*trees: Tree) -> bool:
    """Return whether all leaves, of any shapes, are arrays or tensors of the CPU."""
    return not any(isinstance(x, Tensor) and not x.is_cpu for tree in trees for x in leaves(tree))


def to_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a tensor's values on the host, in its shape [...]; all else that NumPy understands stays as it is."""
    if type(value) is np.ndarray:
        return value
    return value.cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
