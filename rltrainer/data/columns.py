"""The columns of a buffer, for an observation space, an action space and extras."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch

from rltrainer.data.storage import Spec, space_specs
from rltrainer.errors import ParamsError, SpaceError, field_error_text
from rltrainer.tree import Tree, leaves
from rltrainer.validation.field_rules import as_python, is_int

Extra = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape (of one cell) and dtype of each extra, by name."""

_NUMBERS = ["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
EXTRA_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NUMBERS}
"""The dtypes an extra may have, by the name that a file holds."""


def column_specs(
    owner: str, observation_space: gym.Space[Any], action_space: gym.Space[Any], extra: Extra
) -> dict[str, Tree]:
    """Return the specs of the columns `obs, action, reward, terminated, truncated, extra`.

    Raises:
        SpaceError: a space cannot be stored.
    """
    action = space_specs(action_space)
    if not isinstance(action, Spec):
        rule = "must be a Box, Discrete, MultiDiscrete or MultiBinary"
        raise SpaceError(field_error_text(owner, "action_space", rule, action_space))
    return {
        "obs": space_specs(observation_space),
        "action": action,
        "reward": Spec((), torch.float32),
        "terminated": Spec((), torch.bool),
        "truncated": Spec((), torch.bool),
        "extra": {name: Spec(tuple(shape), dtype) for name, (shape, dtype) in extra.items()},
    }


def cell_nbytes(specs: dict[str, Tree]) -> int:
    """Return the bytes that one cell takes in all columns."""
    return sum(spec.nbytes for spec in leaves(specs))


def require_device(owner: str, device: torch.device | str) -> torch.device:
    """Return the device.

    Raises:
        ParamsError: it is none, or not there.
    """
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        rule = "must be a device that PyTorch can use here"
        raise ParamsError(field_error_text(owner, "device", rule, device)) from error


def require_extra(owner: str, extra: Any) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the declared extras.

    Raises:
        ParamsError: it is not a mapping from names to (shape, dtype).
    """
    if extra is None:
        return {}
    if not isinstance(extra, Mapping):
        raise ParamsError(field_error_text(owner, "extra", "must be a mapping from names to (shape, dtype)", extra))
    found = {}
    for name, declared in extra.items():
        match declared:
            case (tuple() | list() as sizes, torch.dtype() as dtype) if dtype in EXTRA_DTYPES.values():
                found[name] = (tuple(map(as_python, sizes)), dtype)
        if not isinstance(name, str) or name not in found or not all(is_int(n) and n >= 0 for n in found[name][0]):
            rule = f"must be (shape, dtype), such as ((3,), torch.float32); dtype one of {', '.join(EXTRA_DTYPES)}"
            raise ParamsError(field_error_text(owner, f"extra[{name!r}]", rule, declared))
    return found
