"""The codec of values that describe themselves: hyperparameters, and the arguments that objects are built with.

Numbers, texts, tuples, dicts, spaces, schedules and params are written out, everything else is named. Reading makes
what the registry knows or a user passed, and nothing else.
"""

import contextlib
import copy
import dataclasses
import inspect
import json
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, TypeVar

import gymnasium as gym

from rltrainer import spaces
from rltrainer.errors import ParamsError, SpaceError, readable
from rltrainer.interval import Every
from rltrainer.schedules import SCHEDULES
from rltrainer.state import registry
from rltrainer.validation.field_rules import as_python
from rltrainer.validation.suggestions import ExplainsArguments

T = TypeVar("T")


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
