"""Spaces of data that does not tell its own: what its dtype, its shape and its range let one believe."""

from typing import Any

import gymnasium as gym
import numpy as np

from rltrainer.data.storage import Array
from rltrainer.errors import SpaceError
from rltrainer.spaces import check_claims
from rltrainer.tree import Tree, leaves


def infer_observation_space(values: Tree, num_bytes: int) -> gym.Space[Any]:
    """Return a space that holds observations [M, ...].

    Floats give a Box without bounds, bytes an image's Box, single integers from 0 on a Discrete.

    Args:
        values: the observations.
        num_bytes: the length of their files. A Box takes memory for a row even where there are none.

    Raises:
        SpaceError: the numbers are of another kind, or a row has more of them than files of this length hold.
    """
    check_claims([_box(leaf) for leaf in leaves(values)], num_bytes)
    return _observation_space(values)


def _box(values: Any) -> dict[str, Any]:
    return {"space": "Box", "shape": list(np.shape(values)[1:])}


def _observation_space(values: Tree) -> gym.Space[Any]:
    if isinstance(values, dict):
        return gym.spaces.Dict([(key, _observation_space(part)) for key, part in values.items()])
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return gym.spaces.Box(-np.inf, np.inf, array.shape[1:], np.float32)
    if array.dtype == np.uint8 and array.ndim > 1:
        return gym.spaces.Box(0, 255, array.shape[1:], np.uint8)
    return _choices("observation", array)


def infer_action_space(values: Any, num_bytes: int) -> gym.Space[Any]:
    """Return a space that holds actions [M, ...].

    Floats that lie in [-1, 1] give a Box with these bounds, others one without bounds, integers from 0 on a Discrete.
    For arguments and errors see `infer_observation_space`.
    """
    check_claims(_box(values), num_bytes)
    array = np.asarray(values)
    if array.dtype.kind != "f":
        return _choices("action", array)
    is_unit = array.size > 0 and bool((np.abs(array) <= 1).all())
    bound = np.float32(1 if is_unit else np.inf)
    return gym.spaces.Box(-bound, bound, array.shape[1:], np.float32)


def _choices(what: str, array: Array) -> gym.Space[Any]:
    is_one = array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)
    if array.dtype.kind not in "iu" or not is_one or not array.size or array.min() < 0:
        text = f"expected floats or single integers from 0 on, found {array.dtype} of shape {array.shape}"
        raise SpaceError(f"{what}s: {text}. Pass {what}_space.")
    return gym.spaces.Discrete(int(array.max()) + 1)
