"""Gymnasium spaces: which tensors hold their values, how values are checked against them, how they go into a file."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from rltrainer.errors import SpaceError, readable
from rltrainer.tree import Tree, leaves
from rltrainer.validation.field_rules import is_int

# More than any observation has: numbers and axes of a Box in a file, and numbers of all Boxes of a short file.
MAX_BOX_SIZE, MAX_AXES, FREE_BOX_SIZE = 2**26, 32, 2**20
# Each choice of an action space is an output of a policy's network.
MAX_CHOICES = 2**24
# float32 rounds off this share of the larger bound in `low + (high - low) * x`: two last-place units of twice it.
ROUNDING = 4 * 2.0**-23

# The key of a Dict observation's leaf that says which discrete actions are allowed.
ACTION_MASK = "action_mask"

Space = gym.Space[Any]
Array = np.ndarray[Any, Any]

_SIGNED = {np.dtype(np.uint16): torch.int32, np.dtype(np.uint32): torch.int64}
LEAF_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def leaf_spaces(space: Space) -> Tree:
    """Return the space as a tree of its leaf spaces, of any shape; a part of another kind is a `SpaceError`."""
    if isinstance(space, spaces.Dict):
        return {key: leaf_spaces(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(leaf_spaces(part) for part in space.spaces)
    if isinstance(space, LEAF_SPACES):
        return space
    names = ", ".join(cls.__name__ for cls in LEAF_SPACES)
    hint = "Leave it out, or make numbers of it, in a wrapper of the env."
    raise SpaceError(f"unsupported space {readable(space)}: must be {names}, or a Dict or Tuple of these. {hint}")


def stored_dtype(space: Space) -> torch.dtype:
    """Return a leaf's stored dtype: float32 for floats, int64 for choices, else its own; uint64 is a `SpaceError`."""
    assert space.dtype is not None, "every leaf space has a dtype"
    if np.issubdtype(space.dtype, np.floating):
        return torch.float32
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return torch.int64
    if space.dtype == np.uint64:  # PyTorch has none that holds all of them
        hint = "Give the env another dtype in a wrapper: int64, or float32."
        raise SpaceError(f"unsupported space {readable(space)}: must not be a Box of uint64. {hint}")
    # PyTorch computes with no unsigned integers of more than 8 bits: signed ones of twice as many hold these.
    return _SIGNED.get(np.dtype(space.dtype)) or torch.from_numpy(np.empty(0, space.dtype)).dtype


def numpy_dtype(space: Space) -> np.dtype[Any]:
    """Return `stored_dtype` as a NumPy dtype."""
    return np.dtype(str(stored_dtype(space)).removeprefix("torch."))


def leaf_shape(space: Space) -> tuple[int, ...]:
    """Return the shape of one value of a leaf space."""
    assert space.shape is not None, "every leaf space has a shape"
    return tuple(space.shape)


def has_images(observation_space: Space) -> bool:
    """Return whether a part of an observation is an image: a Box of three axes."""
    return any(isinstance(s, spaces.Box) and len(leaf_shape(s)) == 3 for s in leaves(leaf_spaces(observation_space)))


def has_action_mask(observation_space: Space) -> bool:
    """Return whether observations say which actions are allowed."""
    return isinstance(observation_space, spaces.Dict) and ACTION_MASK in observation_space.spaces


def num_choices(action_space: Space) -> list[int] | None:
    """Return the number of choices for each number of an action; None if the space is not one of choices."""
    if isinstance(action_space, spaces.Discrete):
        return [int(action_space.n)]
    if isinstance(action_space, spaces.MultiBinary):
        return [2] * math.prod(action_space.shape)
    return action_space.nvec.flatten().tolist() if isinstance(action_space, spaces.MultiDiscrete) else None


def require_floats(owner: str, action_space: Space) -> None:
    """Raise a `SpaceError` for a Box of integers: what the env got would not be what the policy, `owner`, chose."""
    if isinstance(action_space, spaces.Box) and not np.issubdtype(action_space.dtype, np.floating):
        hint = "Give the env a Discrete or MultiDiscrete space in a wrapper, or floats that the wrapper rounds."
        raise SpaceError.about(owner, "action_space", "must hold floats if it is a Box", action_space, hint)


def require_few_choices(owner: str, action_space: Space) -> None:
    """Raise a `SpaceError` if the network of a policy, `owner`, would have more outputs than fit into memory."""
    if sum(num_choices(action_space) or ()) > MAX_CHOICES:
        rule, hint = f"must have at most {MAX_CHOICES} choices in all", "Make several numbers of them: MultiDiscrete."
        raise SpaceError.about(owner, "action_space", rule, action_space, hint)


def to_plain(space: Space) -> dict[str, Any]:
    """Describe a space with plain values, for a file; an unsupported one is a `SpaceError`."""
    if isinstance(space, spaces.Dict):
        return {"space": "Dict", "parts": {key: to_plain(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"space": "Tuple", "parts": [to_plain(part) for part in space.spaces]}
    if isinstance(space, spaces.Box):
        # One number if all bounds are equal: an image's 28,224 zeros would swell every file.
        bounds = {"low": _shortest(space.low).tolist(), "high": _shortest(space.high).tolist()}
        return {"space": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"space": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"space": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"space": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    raise SpaceError(f"unsupported space {readable(space)}")


def check_claims(plain: Any, num_bytes: int) -> None:
    """Raise a `SpaceError` if the Boxes in a file's plain data have too many numbers, before one is made."""
    # A file that stores or learns from observations of N numbers has not many fewer bytes than N.
    limit = max(FREE_BOX_SIZE, 4 * num_bytes)
    total = 0
    waiting = [plain]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict) and each.get("space") == "Box":
            total += _box_size(each)
            if total > limit:
                shape = tuple(each["shape"])
                raise SpaceError(f"a Box of shape {shape} in the file: all must hold at most {limit} numbers")
        elif isinstance(each, dict | list):
            waiting.extend(each.values() if isinstance(each, dict) else each)


def _box_size(plain: dict[str, Any]) -> int:
    """Return how many numbers a Box in a file has, an axis of 0 counting as 1; a `SpaceError` if it has no shape."""
    shape = plain.get("shape")
    if not isinstance(shape, list) or len(shape) > MAX_AXES or not all(is_int(n) and n >= 0 for n in shape):
        raise SpaceError(f"a Box in the file: its shape must be at most {MAX_AXES} integers; got {readable(shape)}")
    return math.prod(max(n, 1) for n in shape)


def from_plain(plain: dict[str, Any]) -> Space:
    """Rebuild a space from `to_plain`, or raise a `SpaceError`; only the names listed here are known."""
    try:
        match plain["space"]:
            case "Dict":
                # Pairs keep their order; gymnasium sorts the keys of a dict.
                return spaces.Dict([(key, from_plain(part)) for key, part in plain["parts"].items()])
            case "Tuple":
                return spaces.Tuple([from_plain(part) for part in plain["parts"]])
            case "Box":
                shape, dtype = tuple(plain["shape"]), np.dtype(plain["dtype"])
                if dtype.kind not in "biuf":
                    raise ValueError("a Box is of numbers")
                if _box_size(plain) > MAX_BOX_SIZE:  # before the bounds are made
                    raise SpaceError(f"a Box of shape {shape} in the file: must hold at most {MAX_BOX_SIZE} numbers")
                low, high = (np.broadcast_to(np.asarray(plain[k], dtype.type), shape) for k in ("low", "high"))
                return spaces.Box(low, high, shape, dtype.type)
            case "Discrete":
                return spaces.Discrete(plain["n"], start=plain["start"])
            case "MultiDiscrete":
                return spaces.MultiDiscrete(np.asarray(plain["nvec"]), start=np.asarray(plain["start"]))
            case "MultiBinary":
                return spaces.MultiBinary(plain["n"])
            case name:
                raise SpaceError(f"unknown space {name!r} in the file")
    except SpaceError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, AssertionError) as error:
        raise SpaceError(f"not the description of a space: {readable(plain)}") from error


def spaces_mismatch(owner: str, expected: Any, found: Any) -> str | None:
    """Return a sentence about `owner` if its observations or actions differ from the expected ones, else None.

    Both objects have an `observation_space` and an `action_space`; bounds count for actions. See `describe_mismatch`.
    """
    for name in ("observation_space", "action_space"):
        both = getattr(expected, name), getattr(found, name)
        if text := describe_mismatch(f"{owner}.{name}", *both, with_bounds=name == "action_space"):
            return text
    return None


def describe_mismatch(what: str, expected: Space, found: Space, *, with_bounds: bool = False) -> str | None:
    """Return a sentence that starts with `what` if two spaces differ, else None.

    Kind, shape, dtype and choices are compared; `with_bounds` also the bounds of a Box, as actions need it.
    """
    text = f"{what}: expected {expected}, found {found}"
    if _signature(expected) != _signature(found):
        return text
    if with_bounds and isinstance(expected, spaces.Box) and isinstance(found, spaces.Box):
        bounds = [np.stack([box.low, box.high], -1).astype(numpy_dtype(box)) for box in (expected, found)]
        for index in np.argwhere((bounds[0] != bounds[1]).any(-1)).tolist():
            here, there = (each[tuple(index)].tolist() for each in bounds)
            return f"{text}; number {index} lies in {here} of the one and in {there} of the other"
    return None


class ValueRange:
    """The range of values of a leaf space; bounds of floats are widened by what float32 rounds off."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._limits: list[Array] = []
        if isinstance(space, spaces.Box):
            limits = [space.low, space.high]
        else:
            low = np.asarray(getattr(space, "start", 0))
            limits = [low, low + (np.reshape(num_choices(space) or (), leaf_shape(space)) - 1)]
        with np.errstate(over="ignore"):
            limits = [bound.astype(numpy_dtype(space)) for bound in limits]
        if np.issubdtype(limits[0].dtype, np.floating):
            if not np.isfinite(limits).any():
                return
            largest = np.max([np.where(np.isfinite(bound), np.abs(bound), 0) for bound in limits], axis=0)
            limits = [limits[0] - largest * np.float32(ROUNDING), limits[1] + largest * np.float32(ROUNDING)]
        # A comparison with one number takes half the time of a comparison with a row of numbers.
        self._limits = [_shortest(bound) for bound in limits]

    def holds(self, values: Array) -> bool:
        """Return whether all values [..., *shape] are in range; NaN is not, where there are bounds."""
        if not self._limits:
            return True
        low, high = self._limits
        size = values.size
        return bool(np.count_nonzero(values >= low) == size and np.count_nonzero(values <= high) == size)

    def outside(self, values: Array) -> Array:
        """Return which numbers of values [..., *shape] are out of range."""
        if not self._limits:
            return np.zeros(values.shape, np.bool_)
        low, high = self._limits
        return ~((values >= low) & (values <= high))


def _shortest(bound: Array) -> Array:
    """Return one number [] if all are equal, else the bound itself."""
    return bound.reshape(-1)[0:1].reshape(()) if bound.size and (bound == bound.flat[0]).all() else bound


def _signature(space: Space) -> Any:
    """Return values that are equal for spaces that are stored alike."""
    if isinstance(space, spaces.Dict):
        return "Dict", [(key, _signature(part)) for key, part in space.spaces.items()]
    if isinstance(space, spaces.Tuple):
        return "Tuple", [_signature(part) for part in space.spaces]
    # float64 and float32 envs are interchangeable: both are stored as float32.
    if isinstance(space, spaces.Box):
        return "Box", space.shape, stored_dtype(space)
    return to_plain(space)
