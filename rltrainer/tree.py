"""Trees of arrays or tensors: an observation is a leaf, or dicts and tuples of observations."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

Tree = Any
"""A leaf (tensor or array), or a dict or tuple of trees. Dicts keep the order of their space."""


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to each leaf of `tree` (and the leaves of `others` at the same place)."""
    if isinstance(tree, dict):
        return {key: map_tree(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *items) for items in zip(tree, *others, strict=True))
    return function(tree, *others)


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
    """Return a tree of the same form with these leaves, given in the order of their space."""
    rest = iter(new)
    return map_tree(lambda _: next(rest), tree)


def leaves(tree: Tree) -> list[Any]:
    """Return the leaves in the order of their space."""
    return [leaf for _, leaf in named_leaves(tree)]
