"""The names that files may hold, and what each stands for. Nothing is looked up anywhere else, nothing is imported.

Ours are a closed list, made when the package is imported. A user's are registered here, or passed to whoever reads.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar, cast

from rltrainer.errors import ParamsError, field_error_text, readable

T = TypeVar("T")
_classes: dict[str, type[Any]] = {}
_values: dict[str, Any] = {}
_users: dict[str, Any] = {}

Named = Mapping[str, Any] | Collection[Any]
"""Classes and functions of a user's, or what names in a file stand for."""


def add_classes(items: Iterable[Any]) -> None:
    """Let files name those of our classes that say what they are built with: policies, algorithms, params."""
    _classes.update((item.__name__, item) for item in items if isinstance(item, type) and hasattr(item, "to_plain"))


def add_values(*values: Any) -> None:
    """Let files name functions and classes of ours that are arguments themselves, such as activations."""
    _values.update((value.__name__, value) for value in values)


def register(item: T) -> T:
    """Let files name a class or function of yours: a policy, an algorithm, params, an activation, an encoder.

    Also a decorator: returns `item`. What is registered need not be passed to `load` and `load_policy`.

    Raises:
        ParamsError: it has no name, or another one has the same.
    """
    for name in _names(item):
        known = _users.get(name, item)
        # A module that is loaded again, or a cell that runs again, makes the same class anew.
        if known is not item and _origin(known) != _origin(item):
            raise ParamsError(f"register: {name!r} is the name of {readable(known)}. Rename one of the two.")
    _users.update(dict.fromkeys(_names(item), item))
    return item


def users_names(named: Named) -> dict[str, Any]:
    """Return what names stand for: those of a user's that are registered, and those that were passed.

    Raises:
        ParamsError: something has no name.
    """
    if not isinstance(named, Mapping | list | tuple | set | frozenset):
        rule = "must be classes and functions, or a dict from their names"
        raise ParamsError(field_error_text("load", "classes", rule, named))
    items = named.items() if isinstance(named, Mapping) else [(name, item) for item in named for name in _names(item)]
    return _users | dict(items)


def class_named(name: object) -> type[Any] | None:
    """Return a class of ours, or None."""
    return _classes.get(name) if isinstance(name, str) else None


def value_named(name: object) -> Any:
    """Return a function or class of ours that is an argument, or None."""
    return _values.get(name) if isinstance(name, str) else None


def value_meant(word: str) -> Any:
    """Return the function or class of ours that a person's word names, in upper or lower case; or None."""
    return next((value for name, value in _values.items() if name.lower() == word.lower()), None)


def name_of(value: object) -> dict[str, str]:
    """Return `{"known": name}` for what is ours, and `{"live": name}` for everything else."""
    name = getattr(value, "__name__", "")
    if isinstance(name, str) and (_classes.get(name) is value or _values.get(name) is value):
        return {"known": name}
    return {"live": getattr(value, "__qualname__", type(value).__qualname__)}


def _names(item: object) -> set[str]:
    """Return what files call a class or function: params by the short name, everything else by the long one."""
    names = {getattr(item, "__name__", None), getattr(item, "__qualname__", None)}
    if not all(isinstance(name, str) for name in names):
        rule = "must be a class or a function"
        raise ParamsError(field_error_text("register", "item", rule, item, "Pass a dict to give it a name."))
    return cast(set[str], names)


def _origin(item: Any) -> tuple[Any, Any]:
    return getattr(item, "__module__", None), item.__qualname__
