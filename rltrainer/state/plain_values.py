"""Values as plain data and back: the one codec of params, and of what policies and algorithms are built with.

Numbers, texts, tuples, dicts, spaces, schedules and params are written out; policies and algorithms as their class and
the arguments of its constructor. Everything else is named. Reading makes what the registry knows and what a user
passed, and nothing else.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

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
    """Return a value as plain data; what can only be named, as `{"live": name}`."""
    value = as_python(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
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
        try:
            return spaces.to_plain(value)
        except SpaceError:  # who is built with it says so
            pass
    return registry.name_of(value)


def construction(cls: type[Any], args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Return as JSON how an object is built: its class and the arguments of its constructor, defaults too.

    Text, as it is kept with the object: copies and pickles of that must hold no lambda of a user's.
    """
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(args) <= len(names):
        args, options = (), dict(zip(names, args, strict=False)) | options
    options = {p.name: p.default for p in parameters if p.default is not p.empty} | options
    plain = {"built": registry.name_of(cls), "args": to_plain(args), "options": to_plain(options)["dict"]}
    return json.dumps(plain)


class Constructed(ExplainsArguments):
    """Metaclass of policies and algorithms: keeps an object's class and arguments, for the file of the object.

    It sees the call itself, with the arguments of any subclass, so no constructor has a line for it. Copies and pickles
    make no such call, and take `_construction` along as any other attribute.
    """

    def __call__(cls: type[T], *args: Any, **options: Any) -> T:
        """Make an object, and set its `_construction`."""
        text = construction(cls, args, options)  # before the constructor, which may change what it is given
        made = super().__call__(*args, **options)  # type: ignore[misc]  # of this metaclass
        made._construction = text
        return made  # type: ignore[no-any-return]  # of the class


class PlainReader:
    """Makes values of plain data that was read.

    Args:
        users: what a user's names stand for.
        remedy: says of a name that is none of these how to pass what it stands for, given the path and the name.
        build: makes an object of a class, arguments and options; None where the data may hold none.
    """

    def __init__(
        self,
        users: Mapping[str, Any],
        remedy: Callable[[str, str], str],
        build: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None,
    ) -> None:
        self._users, self._remedy, self._build = users, remedy, build

    def read(self, plain: Any, path: str) -> Any:
        """Return the value that `to_plain` was given; a list was a tuple, as what is frozen has no lists.

        Args:
            plain, path: what `to_plain` returned, and its owner and field, for error texts.

        Raises:
            ParamsError: it is nothing that `to_plain` returns, or holds a name that is not known here.
            SpaceError: it describes no space.
        """
        match plain:
            case list():
                return tuple(self.read(item, path) for item in plain)
            case {"dict": dict(items)}:
                return {key: self.read(item, path) for key, item in items.items()}
            case {"space": _}:
                return spaces.from_plain(plain)
            case {"schedule": name}:
                return _schedule(name, plain, path)
            case {"every": n, "unit": unit, **rest} if not rest:
                return Every(n, unit)
            case {"params": str(name), "fields": dict(fields), **rest}:
                found = None if "own" in rest else registry.class_named(name)
                found = found or self._of_users(name, path)
                if not hasattr(found, "from_plain"):
                    raise ParamsError(f"{path}: {readable(name)} are no params")
                return found.from_plain(fields, self)
            case {"built": dict(name), "args": list(args), "options": dict(options)} if self._build is not None:
                cls = self._class(name, path)
                read = {field: self.read(item, f"{cls.__name__}.{field}") for field, item in options.items()}
                return self._build(cls, self.read(args, cls.__name__), read)
            case {"known": str(name)}:
                return _known(registry.value_named(name), name, path)
            case {"live": str(name)}:
                return self._of_users(name, path)
            case dict():
                raise ParamsError(f"{path}: {readable(plain)} is nothing that rltrainer writes")
        return plain

    def _class(self, plain: dict[str, Any], path: str) -> Any:
        match plain:
            case {"known": str(name)}:
                return _known(registry.class_named(name), name, path)
        return self.read(plain, path)

    def _of_users(self, name: str, path: str) -> Any:
        if name not in self._users:
            raise ParamsError(f"{path}: {self._remedy(path, name)}")
        return self._users[name]


def _known(found: Any, name: str, path: str) -> Any:
    if found is None:
        raise ParamsError(
            f"{path}: this release of rltrainer knows no {readable(name)}. Was it written by a newer one?"
        )
    return found


def _schedule(name: object, plain: dict[str, Any], path: str) -> object:
    if not isinstance(name, str) or name not in SCHEDULES:
        raise ParamsError(f"{path}: unknown schedule {readable(name)} in the JSON; known: {', '.join(SCHEDULES)}")
    numbers = {key: number for key, number in plain.items() if key != "schedule"}
    known = [field.name for field in dataclasses.fields(SCHEDULES[name])]
    if set(numbers) != set(known):
        raise ParamsError(f"{path}: a {name} in JSON has {', '.join(known)}; got {readable(list(numbers))}")
    return SCHEDULES[name](**numbers)
