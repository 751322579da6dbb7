"""Observations to try a policy with, drawn from its space, and what they are called in files."""

import copy
import re
from collections.abc import Iterator

import numpy as np
import torch
from gymnasium import spaces

from rltrainer.errors import ExportError, readable
from rltrainer.nets.policy import Policy
from rltrainer.spaces import ACTION_MASK, Array, Space, leaf_spaces, num_choices, numpy_dtype
from rltrainer.tree import Tree, map_tree

PLAIN_NAME = re.compile(r"[\w./:-]+")
LARGEST = 10.0
"""Numbers that are drawn lie in [-10, 10] where their Box allows it: some are said to go to 3e38."""


def draw_observations(policy: Policy, num: int, seed: int = 0) -> Tree:
    """Draw raw observations that a policy acts on: a tree of arrays [num, ...], as they are stored.

    Keys that only the critic sees are left out. Of a mask, each choice has something that is allowed.
    """
    space = copy.deepcopy(policy.observation_space)  # its random numbers are the user's
    space.seed(seed)
    samples = map_tree(lambda leaf: _samples(leaf, num), leaf_spaces(space))
    if policy.has_mask:
        first = np.cumsum([0, *(num_choices(policy.action_space) or ())])[:-1]
        samples[ACTION_MASK][:, first] = 1
    return seen_part(policy, samples)


def draw_state(policy: Policy, num: int, seed: int = 0) -> tuple[Array, ...]:
    """Draw memories [num, S] in [-1, 1]; none for a policy that does without."""
    if not policy.is_recurrent:
        return ()
    state = policy.initial_state(num)
    assert state is not None, "of a recurrent policy"
    return (np.random.default_rng(seed).uniform(-1, 1, tuple(state.shape)).astype(np.float32),)


def seen_part(policy: Policy, tree: Tree) -> Tree:
    """Return the parts of an observation's tree that the policy acts on."""
    if not isinstance(tree, dict):
        return tree
    return {key: part for key, part in tree.items() if key not in policy.unseen_keys}


def to_tensors(tree: Tree) -> Tree:
    """Return the arrays of a tree as tensors."""
    return map_tree(torch.from_numpy, tree)


def check_keys(owner: str, observation_space: Space) -> None:
    """Check that what inputs are named by is a name: PyTorch writes it into code of its own, and it may be a file's.

    Raises:
        ExportError: a key of a Dict holds another character, or two leaves have one name; the text names `owner`.
    """
    tree = leaf_spaces(observation_space)
    for name in (names := list(dotted_names(tree))):
        if not PLAIN_NAME.fullmatch(name):
            rule = "keys must consist of letters, digits and ._-/:"
            raise ExportError(f"{owner}: {readable(name)}: {rule}. Rename them in a wrapper of the env.")
        if names.count(name) > 1:
            raise ExportError(f"{owner}: two parts of an observation are called {name!r}. Rename one in a wrapper.")


def dotted_names(tree: Tree, name: str = "obs") -> Iterator[str]:
    """Yield what each leaf is called: `obs`, `obs.camera.left`, `obs.0`, in the order of the space."""
    if isinstance(tree, dict | tuple):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from dotted_names(part, f"{name}.{key}")
    else:
        yield name


def _samples(space: Space, num: int) -> Array:
    values = np.stack([space.sample() for _ in range(num)])
    if isinstance(space, spaces.Box) and values.dtype.kind == "f":
        low, high = np.maximum(space.low, -LARGEST), np.minimum(space.high, LARGEST)
        values = np.clip(values, np.minimum(low, space.high), np.maximum(high, space.low))
    return values.astype(numpy_dtype(space))
