"""The codec of what is saved: dataclasses by their fields' types, and values that describe themselves."""

import contextlib
import copy
import dataclasses
import inspect
import json
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer import spaces
from rltrainer.errors import CheckpointError, ParamsError, SpaceError, readable
from rltrainer.interval import Every
from rltrainer.schedules import SCHEDULES
from rltrainer.state import registry
from rltrainer.validation.field_rules import as_python, field_hints, missing_fields, rules_of
from rltrainer.validation.suggestions import ExplainsArguments

T = TypeVar("T")
LARGEST_INT = 2**62


# `to_state` and `from_state` write and read the state of a part, a dataclass: no value is taken from a file that the
# type and rule of its field do not allow. All of a state is read before any of it is assigned.


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
    """Raise a `CheckpointError` unless a saved tensor can replace one: of its shape and dtype, and at least `least`."""
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
    """Return a value that was saved, if a type allows it; `from_state` does so for each field of a dataclass."""
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
    # By `type`, not `isinstance`: True is an int. Sums of two saved integers must fit into 64 bits.
    int: ("an integer", lambda v: type(v) is int and abs(v) < LARGEST_INT),
    float: ("a number", lambda v: type(v) is float or (type(v) is int and abs(v) < LARGEST_INT)),
    bool: ("True or False", lambda v: type(v) is bool),
    str: ("text", lambda v: type(v) is str),
    Tensor: ("a scalar tensor", lambda v: isinstance(v, Tensor) and v.numel() == 1 and v.is_floating_point()),
}


# `to_plain` and `PlainReader` write and read hyperparameters and the arguments that policies and algorithms are built
# with. Numbers, texts, tuples, dicts, spaces, schedules and params are written out, everything else is named; reading
# makes what the registry knows or a user passed, and nothing else.


def to_plain(value: object) -> Any:
    """Return a value as plain data; everything that can only be named as `{"live": name}`."""
    value = as_python(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    # Tagged, so that no dict of a user's reads as one of the forms below.
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: to_plain(item) for key, item in value.items()}}
    if hasattr(type(value), "to_plain"):  # params, policies, algorithms
        plain = value.to_plain()  # type: ignore[attr-defined]  # just asked for
        is_ours = "params" not in plain or registry.class_named(type(value).__name__) is type(value)
        return plain if is_ours else plain | {"own": True}
    name = type(value).__name__
    if SCHEDULES.get(name) is type(value):
        return {"schedule": name, **vars(value)}
    if isinstance(value, Every):
        return {"every": value.n, "unit": value.unit}
    if isinstance(value, gym.Space):
        with contextlib.suppress(SpaceError):  # who is built with it says so
            return spaces.to_plain(value)
    return registry.name_of(value)


MAX_ITEMS = 10_000
"""Largest number of values in a construction that is read, the inside of spaces aside. Each may become an object."""


def items_of(plain: Any) -> Iterator[Any]:
    """Yield plain data and all that is in it, but for the inside of spaces."""
    yield plain
    if isinstance(plain, list) or (isinstance(plain, dict) and "space" not in plain):
        for item in plain.values() if isinstance(plain, dict) else plain:
            yield from items_of(item)


def construction(cls: type[Any], args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Return as JSON how an object is built: its class and the arguments of its constructor, defaults too."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) <= len(names):
        args, options = (), dict(zip(names, args, strict=False)) | options
    options = {p.name: p.default for p in parameters if p.default is not p.empty} | options
    plain = {"built": registry.name_of(cls), "args": to_plain(args), "options": to_plain(options)["dict"]}
    if (found := sum(1 for _ in items_of(plain))) > MAX_ITEMS:
        text = f"{cls.__name__}: its arguments hold {found} values, and files of rltrainer are read up to {MAX_ITEMS}"
        warnings.warn(f"{text}. Pass them as an array, and to rl.load by its `classes`.", stacklevel=3)
    return json.dumps(plain)  # a text: copies and pickles of the object must hold no lambda of a user's


class Constructed(ExplainsArguments):
    """Metaclass of policies and algorithms: keeps an object's class and arguments, for the file of the object."""

    # It sees the call itself, with the arguments of any subclass, so no constructor has a line for it. Copies and
    # pickles make no such call, and take `_construction` along as any other attribute.
    def __call__(cls: type[T], *args: Any, **options: Any) -> T:
        """Make an object, and set its `_construction`."""
        text = construction(cls, args, options)  # before the constructor, which may change what it is given
        made = super().__call__(*args, **options)  # type: ignore[misc]  # of this metaclass
        made._construction = text
        return made  # type: ignore[no-any-return]  # of the class


class PlainReader:
    """Makes values of plain data that was read.

    Args:
        users: a user's objects by their names.
        remedy: (place, name) -> the advice how to pass the object of a name that is none of these.
        build: (class, arguments, options) -> an object; None where the data may hold none.
        placed: the same by their places, such as `policy.net.encoder`, before their names: two lambdas have one name.
    """

    def __init__(
        self,
        users: Mapping[str, Any],
        remedy: Callable[[str, str], str],
        build: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None,
        placed: Mapping[str, Any] = types.MappingProxyType({}),
    ) -> None:
        self._users, self._remedy, self._build, self._placed, self._place = users, remedy, build, placed, ""

    def inside(self, field: object) -> Self:
        """Return a reader of what a field holds, or of an item."""
        reader = copy.copy(self)
        reader._place = f"{self._place}.{field}".removeprefix(".")
        return reader

    def read(self, plain: Any, path: str, named_by: Callable[[str], Any] = registry.value_named) -> Any:
        """Return the value that `to_plain` was given; a list was a tuple, as frozen params hold no lists.

        Args:
            plain: as `to_plain` returned it.
            path: owner and field, for error texts.
            named_by: from a name of rltrainer's to its object, or None.

        Raises:
            ParamsError: `to_plain` returns no such data, or it holds a name that is not known here.
            SpaceError: it describes no space.
        """
        match plain:
            case list():
                return tuple(self.inside(i).read(item, path) for i, item in enumerate(plain))
            case {"dict": dict(items)}:
                return {key: self.inside(key).read(item, path) for key, item in items.items()}
            case {"space": _}:
                return spaces.from_plain(plain)
            case {"schedule": name, **numbers}:
                return _schedule(name, numbers, path)
            case {"every": n, "unit": unit, **rest} if not rest:
                return Every(n, unit)
            case {"params": str(name), "fields": dict(fields), **rest}:
                found = None if "own" in rest else registry.class_named(name)
                found = found or self._of_users(name, path)
                if not hasattr(found, "from_plain"):
                    raise ParamsError(f"{path}: {readable(name)} are no params")
                return found.from_plain(fields, self)
            case {"built": dict(named), "args": list(args), "options": dict(options)} if self._build is not None:
                cls = self.read(named, path, registry.class_named)
                read = {name: self.inside(name).read(item, f"{cls.__name__}.{name}") for name, item in options.items()}
                return self._build(cls, self.read(args, cls.__name__), read)
            case {"known": str(name)}:
                if (found := named_by(name)) is None:
                    text = f"this release of rltrainer knows no {readable(name)}. Was it written by a newer one?"
                    raise ParamsError(f"{path}: {text}")
                return found
            case {"live": str(name)}:
                return self._of_users(name, path)
            case dict():
                raise ParamsError(f"{path}: {readable(plain)} is nothing that rltrainer writes")
        return plain

    def _of_users(self, name: str, path: str) -> Any:
        for key, known in ((self._place, self._placed), (name, self._users)):
            if key in known:
                return known[key]
        raise ParamsError(f"{path}: {self._remedy(self._place, name)}")


def _schedule(name: object, numbers: dict[Any, Any], path: str) -> object:
    if not isinstance(name, str) or name not in SCHEDULES:
        raise ParamsError(f"{path}: unknown schedule {readable(name)} in the JSON; known: {', '.join(SCHEDULES)}")
    known = [field.name for field in dataclasses.fields(SCHEDULES[name])]
    if set(numbers) != set(known):
        raise ParamsError(f"{path}: a {name} in JSON has {', '.join(known)}; got {readable(list(numbers))}")
    return SCHEDULES[name](**numbers)
