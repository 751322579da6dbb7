"""Checks of what an env returned against its spaces; a text names env and leaf, what was expected and what came."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from rltrainer.errors import SpaceError
from rltrainer.spaces import leaf_shape
from rltrainer.tree import Tree


def check_obs(who: str, space: Tree, obs: Tree, batch: tuple[int, ...] = ()) -> None:
    """Check an observation against a tree of leaf spaces; choices may have any integer dtype.

    Texts begin with `who`, such as `env 3 obs`; `batch` are axes in front of the space's shape, `(num_envs,)` or none.

    Raises:
        SpaceError: other keys, another shape or another dtype.
    """
    if isinstance(space, dict):
        if not isinstance(obs, dict) or set(obs) != set(space):
            raise SpaceError(f"{who}: expected a dict with the keys {list(space)}, got {describe(obs)}")
        for key, part in space.items():
            check_obs(f'{who}["{key}"]', part, obs[key], batch)
    elif isinstance(space, tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space):
            raise SpaceError(f"{who}: expected a tuple of {len(space)}, got {describe(obs)}")
        for i, part in enumerate(space):
            check_obs(f"{who}[{i}]", part, obs[i], batch)
    else:
        shape = (*batch, *leaf_shape(space))
        if shape_of(obs) != shape or not _fits_dtype(space, _dtype_name(obs)):
            hint = " (the dtype differs: cast it, or declare the space with it)" if shape_of(obs) == shape else ""
            raise SpaceError(f"{who}: expected {space.dtype} {shape}, got {describe(obs)}{hint}")


def check_flag(who: str, flag: Any, batch: tuple[int, ...] = ()) -> None:
    """Raise a `SpaceError` unless `terminated` or `truncated` is bool, of shape `batch`."""
    is_scalar = not batch and isinstance(flag, bool)
    if not is_scalar and (shape_of(flag) != batch or _dtype_name(flag) != "bool"):
        expected = f"bool {batch}" if batch else "bool"
        raise SpaceError(f"{who}: expected {expected}, got {describe(flag)}")


def check_reward(who: str, reward: Any, batch: tuple[int, ...] = ()) -> None:
    """Raise a `SpaceError` unless a reward is numbers of shape `batch`, or one per agent `(*batch, num_agents)`."""
    is_plain_number = isinstance(reward, int | float)
    shape = () if is_plain_number else shape_of(reward)
    is_number = is_plain_number or _dtype_name(reward).startswith(("float", "bfloat", "int", "uint", "bool"))
    if not is_number or shape is None or shape[: len(batch)] != batch or len(shape) > len(batch) + 1:
        expected = f"numbers {batch}, or {(*batch, 'num_agents')}" if batch else "a number, or one per agent"
        raise SpaceError(f"{who}: expected {expected}, got {describe(reward)}")


def describe(value: Any) -> str:
    """Say in a few words what a value is: `uint8 (84, 84, 3)`, `a tuple of 2`, `NoneType None`."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return f"{_dtype_name(value)} {shape_of(value)}"
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:40] + '...'}"


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array, tensor or plain integer, else None."""
    if isinstance(value, int) and not isinstance(value, bool):
        return ()
    return tuple(value.shape) if isinstance(value, np.ndarray | np.generic | torch.Tensor) else None


def _dtype_name(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return "int64"
    return str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")


def _fits_dtype(space: Any, name: str) -> bool:
    if isinstance(space, spaces.MultiBinary) and name == "bool":
        return True
    if isinstance(space, spaces.Box):
        return name == str(space.dtype)
    return name.startswith(("int", "uint"))
