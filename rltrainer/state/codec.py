"""The codec of a part's state, a dataclass, by its fields' types.

A value in a file is taken only if the type and rule of its field allow it. All of a state is read before any of it is
assigned.
"""

import dataclasses
import types
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer import spaces
from rltrainer.errors import CheckpointError, ParamsError, SpaceError, readable
from rltrainer.validation.field_rules import field_hints, missing_fields, rules_of

T = TypeVar("T")
LARGEST_INT = 2**62


def to_state(value: Any) -> Any:
    """Return a dataclass, and what is in it, as tensors and plain values in dicts and lists."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_state(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: to_state(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_state(item) for item in value]
    if isinstance(value, gym.Space):
        return spaces.to_plain(value)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def from_state(cls: type[T], state: object, name: str) -> T:
    """Rebuild a dataclass from `to_state`.

    A field that the state lacks takes its default. A class may have a method `problem() -> str | None` for a
    contradiction between its fields.

    Args:
        cls: a dataclass of numbers, strings, scalar tensors, arrays, spaces, dataclasses, and lists and dicts of them.
        state: as it was read.
        name: the owner, for error texts.

    Raises:
        CheckpointError: a field is missing, unknown, or not of its type; the text names it.
    """
    result: T = read(cls, state, name)
    return result


def check_like(name: str, own: Tensor, saved: Any, hint: str, least: float | None = None) -> None:
    """Raise a `CheckpointError` unless a saved tensor [...] can replace one: its shape, dtype, at least `least`."""
    if not isinstance(saved, Tensor):
        raise CheckpointError(f"{name}: expected a tensor, found {readable(saved)}")
    if own.shape != saved.shape:
        raise CheckpointError(f"{name}: expected shape {tuple(own.shape)}, found {tuple(saved.shape)}. {hint}")
    if own.dtype != saved.dtype:
        raise CheckpointError(f"{name}: expected {own.dtype}, found {saved.dtype}. {hint}")
    # Bounds may be infinite from the start; elsewhere a value that is not finite would spread in the next update.
    if saved.is_floating_point() and not saved.isfinite().all() and own.isfinite().all():
        raise CheckpointError(f"{name}: holds NaN or infinity")
    if least is not None and (saved < least).any():
        raise CheckpointError(f"{name}: is {'negative' if least == 0 else 'not positive'}")
    is_count = name.rpartition(".")[2].startswith("num_") and saved.dtype == torch.int64
    if is_count and not ((saved >= 0) & (saved < LARGEST_INT)).all():
        raise CheckpointError(f"{name}: expected a count, found {saved.tolist()!r}")


def read(hint: Any, value: Any, name: str) -> Any:
    """Return a saved value; a `CheckpointError` unless its type allows it. `from_state` does so for each field."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        errors = []
        for alternative in args:
            try:
                return read(alternative, value, name)
            except CheckpointError as error:
                errors.append(error)
        raise errors[0]  # of `Part | None` the first one says more than "expected None"
    if origin in (Annotated, Literal) or hint is types.NoneType:
        value = read(args[0], value, name) if origin is Annotated else value
        # Every rule must hold here. In params one is enough, where a union has a rule for each of its types.
        for rule in rules_of(hint):
            _require(rule.accepts(value), name, rule.text, value)
        return value
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(hint, value, name)
    if origin is list:
        _require(isinstance(value, list), name, "a list", value)
        return [read(args[0], item, f"{name}.{i}") for i, item in enumerate(value)]
    if origin is dict:
        _require(isinstance(value, dict), name, "a mapping", value)
        return {read(args[0], key, name): read(args[1], item, f"{name}.{key}") for key, item in value.items()}
    if origin is gym.Space:  # `check_claims` compares its size with the file's before
        _require(isinstance(value, dict), name, "a space", value)
        try:
            return spaces.from_plain(value)
        except SpaceError as error:
            raise CheckpointError(f"{name}: {error}") from error
    if origin is np.ndarray:
        _require(isinstance(value, Tensor) and value.dtype != torch.bfloat16, name, "an array", value)
        return value.numpy()
    text, accepts = _PLAIN[hint]
    _require(accepts(value), name, text, value)
    return value


def _read_dataclass(cls: Any, value: Any, name: str) -> Any:
    _require(isinstance(value, dict), name, "a mapping", value)
    # Names in a file are only compared with the fields: no attribute is set by a name that was read.
    hints = field_hints(cls)
    for key in value:
        _require(key in hints, f"{name}.{key}", f"no field of {cls.__name__}", value[key])
    for field in missing_fields(cls, value):
        raise CheckpointError(f"{name}.{field}: missing in the saved state")
    fields = {key: read(hints[key], item, f"{name}.{key}") for key, item in value.items()}
    try:
        result = cls(**fields)
    except ParamsError as error:  # two fields contradict each other
        raise CheckpointError(f"{name}: {error}") from error
    problem = result.problem() if hasattr(cls, "problem") else None
    if problem:
        raise CheckpointError(f"{name}: {problem}")
    return result


def _require(condition: bool, name: str, expected: str, found: object) -> None:
    if not condition:
        raise CheckpointError(f"{name}: expected {expected}, found {readable(found)} ({type(found).__name__})")


_PLAIN: dict[Any, tuple[str, Any]] = {
    # Compared by `type`, not `isinstance`: True is an int. Sums of two saved integers must fit into 64 bits.
    int: ("an integer", lambda v: type(v) is int and abs(v) < LARGEST_INT),
    float: ("a number", lambda v: type(v) is float or (type(v) is int and abs(v) < LARGEST_INT)),
    bool: ("True or False", lambda v: type(v) is bool),
    str: ("text", lambda v: type(v) is str),
    Tensor: ("a scalar tensor", lambda v: isinstance(v, Tensor) and v.numel() == 1 and v.is_floating_point()),
}
