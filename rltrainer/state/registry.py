"""The names that files may hold, and the object of each. No name is looked up anywhere else, or imported.

rltrainer's own names are a closed list. A user registers classes and functions here, or passes them to the reader.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar, cast

from rltrainer.errors import ParamsError, readable

T = TypeVar("T")
_classes: dict[str, type[Any]] = {}
_values: dict[str, Any] = {}
_users: dict[str, Any] = {}

# Classes and functions of a user's, or these by name or by their place in what a file describes.
Named = Mapping[str, Any] | Collection[Any]


def add_classes(items: Iterable[Any]) -> None:
    """Let files name the classes of rltrainer that have `to_plain`: policies, algorithms, params."""
    _classes.update((item.__name__, item) for item in items if isinstance(item, type) and hasattr(item, "to_plain"))


def add_values(*values: Any) -> None:
    """Let files name functions and classes of rltrainer that are arguments, such as activations."""
    _values.update((value.__name__, value) for value in values)


def register(item: T) -> T:
    """Let files name your own class or function: a policy, an algorithm, params, an activation, an encoder.

    Also a decorator: returns `item`, which `load` and `load_policy` then find by its name.

    Raises:
        ParamsError: it has no name, or another one has the same.
    """
    # Two classes of one name would make a file's meaning depend on the order of imports.
    for name in _names(item):
        known = _users.get(name, item)
        # A module that is loaded again, or a notebook cell that runs again, makes the same class a second time.
        if known is not item and _origin(known) != _origin(item):
            raise ParamsError(f"register: {name!r} is the name of {readable(known)}. Rename one of the two.")
    _users.update(dict.fromkeys(_names(item), item))
    return item


def users_names(named: Named) -> dict[str, Any]:
    """Return a user's objects by name: registered and passed ones; a `ParamsError` if `named` is of another kind."""
    if not isinstance(named, Mapping | list | tuple | set | frozenset):
        raise ParamsError.about("load", "classes", "must be classes and functions, or a dict from their names", named)
    if isinstance(named, Mapping):
        return _users | dict(named)
    pairs = [(name, item) for item in named for name in _names(item)]
    # A name of two of them is left out, so that the reader asks which of them each place holds.
    doubtful = {name for name, item in pairs for other, another in pairs if name == other and item is not another}
    return {name: item for name, item in (_users | dict(pairs)).items() if name not in doubtful}


def class_named(name: object) -> type[Any] | None:
    """Return a class of rltrainer, or None."""
    return _classes.get(name) if isinstance(name, str) else None


def value_named(name: object) -> Any:
    """Return a function or class of rltrainer that is an argument, or None."""
    return _values.get(name) if isinstance(name, str) else None


def value_meant(word: str) -> Any:
    """Return the function or class of rltrainer that a word names, in upper or lower case, or None."""
    return next((value for name, value in _values.items() if name.lower() == word.lower()), None)


def name_of(value: object) -> dict[str, str]:
    """Return `{"known": name}` for objects of rltrainer, and `{"live": name}` for all others."""
    name = getattr(value, "__name__", "")
    if isinstance(name, str) and (_classes.get(name) is value or _values.get(name) is value):
        return {"known": name}
    return {"live": getattr(value, "__qualname__", type(value).__qualname__)}


def _names(item: object) -> set[str]:
    """Return the names of a class or function in files: the short one of params, the long one of all others."""
    names = {getattr(item, "__name__", None), getattr(item, "__qualname__", None)}
    if not all(isinstance(name, str) for name in names):
        rule = "must be a class or a function"
        raise ParamsError.about("register", "item", rule, item, "Pass a dict to give it a name.")
    return cast(set[str], names)


def _origin(item: Any) -> tuple[Any, Any]:
    return getattr(item, "__module__", None), item.__qualname__
