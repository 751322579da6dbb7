"""States that are read: no value is taken from a file that its field's type and rule, or its tensor, do not allow.

Dataclasses become states and come back. Their fields' names are the only ones there are; what a file adds is an error,
what it lacks is the default.
"""

import dataclasses
import types
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from rltrainer.errors import CheckpointError, ParamsError, readable
from rltrainer.validation.field_rules import field_hints, rules_of

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
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def from_state(cls: type[T], state: object, name: str) -> T:
    """Rebuild a dataclass from `to_state`.

    A class may have a method `problem() -> str | None`, which says what its fields contradict each other in.

    Args:
        cls: a dataclass of numbers, strings, scalar tensors, arrays, dataclasses, and lists and dicts of them.
        state, name: what was read, and what errors call it.

    Raises:
        CheckpointError: a field is missing, unknown, or not of its type; the text names it.
    """
    result: T = _read(cls, state, name)
    return result


def check_like(name: str, own: Tensor, saved: Any, hint: str) -> None:
    """Check that a saved tensor can take the place of one; where all of that is finite, it must be too.

    Raises:
        CheckpointError: it is of another shape or dtype, or not finite.
    """
    if not isinstance(saved, Tensor):
        raise CheckpointError(f"{name}: expected a tensor, found {readable(saved)}")
    if own.shape != saved.shape:
        raise CheckpointError(f"{name}: expected shape {tuple(own.shape)}, found {tuple(saved.shape)}. {hint}")
    if own.dtype != saved.dtype:
        raise CheckpointError(f"{name}: expected {own.dtype}, found {saved.dtype}. {hint}")
    if saved.is_floating_point() and not saved.isfinite().all() and own.isfinite().all():
        raise CheckpointError(f"{name}: holds NaN or infinity")


def check_count(name: str, saved: Tensor) -> None:
    """Check that a tensor whose name says that it counts is not negative, nor about to overflow.

    Raises:
        CheckpointError: it is.
    """
    is_count = name.rpartition(".")[2].startswith("num_") and saved.dtype == torch.int64
    if is_count and not ((saved >= 0) & (saved < LARGEST_INT)).all():
        raise CheckpointError(f"{name}: expected a count, found {saved.tolist()!r}")


def _read(hint: Any, value: Any, name: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _read_one_of(args, value, name)
    if origin in (Annotated, Literal) or hint is types.NoneType:
        value = _read(args[0], value, name) if origin is Annotated else value
        for rule in rules_of(hint):
            _require(rule.accepts(value), name, rule.text, value)
        return value
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(hint, value, name)
    if origin is list:
        _require(isinstance(value, list), name, "a list", value)
        return [_read(args[0], item, f"{name}.{i}") for i, item in enumerate(value)]
    if origin is dict:
        _require(isinstance(value, dict), name, "a mapping", value)
        return {key: _read(args[1], item, f"{name}.{key}") for key, item in value.items()}
    if origin is np.ndarray:
        _require(isinstance(value, Tensor) and value.dtype != torch.bfloat16, name, "an array", value)
        return value.numpy()
    text, accepts = _PLAIN[hint]
    _require(accepts(value), name, text, value)
    return value


def _read_one_of(hints: tuple[Any, ...], value: Any, name: str) -> Any:
    errors = []
    for hint in hints:
        try:
            return _read(hint, value, name)
        except CheckpointError as error:
            errors.append(error)
    raise errors[0]


def _read_dataclass(cls: Any, value: Any, name: str) -> Any:
    _require(isinstance(value, dict), name, "a mapping", value)
    hints = field_hints(cls)
    for key in value:
        _require(key in hints, f"{name}.{key}", f"no field of {cls.__name__}", value[key])
    for field in dataclasses.fields(cls):
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name not in value and not has_default:
            raise CheckpointError(f"{name}.{field.name}: missing in the saved state")
    fields = {key: _read(hints[key], item, f"{name}.{key}") for key, item in value.items()}
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
    int: ("an integer", lambda v: type(v) is int and abs(v) < LARGEST_INT),
    float: ("a number", lambda v: type(v) is float or (type(v) is int and abs(v) < LARGEST_INT)),
    bool: ("True or False", lambda v: type(v) is bool),
    str: ("text", lambda v: type(v) is str),
    Tensor: ("a scalar tensor", lambda v: isinstance(v, Tensor) and v.numel() == 1 and v.is_floating_point()),
}
