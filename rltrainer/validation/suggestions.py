"""Names of arguments: what is wrong with those of a call, and which one a misspelt or foreign name may stand for."""

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, Unpack, cast, get_args, get_origin, get_type_hints

from rltrainer.errors import ArgumentError, NoSuchNameError
from rltrainer.validation.hints import ADVICE, ARGUMENTS, LOADERS

F = TypeVar("F", bound=Callable[..., Any])


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a misspelt or foreign one stands for; None if none is near."""
    theirs = {
        other: ours for other, names in ARGUMENTS.items() if (ours := next(filter(known.__contains__, names), None))
    }
    if name in theirs:
        return theirs[name]
    foreign = difflib.get_close_matches(name, theirs, n=1, cutoff=0.8)  # a misspelt name of another library
    meant = next(iter(difflib.get_close_matches(name, [*known, *foreign], n=1)), None)
    return meant if meant is None or meant in known else theirs[meant]


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return ` Did you mean 'lr'?` for the known name that is meant, other advice, or nothing if none is near."""
    needed, advice = ADVICE.get(name, ("", ""))
    if needed in known and not any(ours in known for ours in ARGUMENTS.get(name, ())):
        return f" {advice}"
    meant = nearest(name, known)
    return "" if meant is None else f" Did you mean {meant!r}?"


def raise_no_such_name(
    owner: str, name: str, here: Mapping[str, str], obj: object, known: Collection[str] = ()
) -> NoReturn:
    """Raise a `NoSuchNameError` for an attribute that is not there.

    Args:
        owner: class or module, for the text.
        name: of the attribute.
        here: other libraries' names, and what does the same here.
        obj: what lacks the attribute.
        known: names that it has, of which one may be meant.
    """
    hint = f" Here {here[name]}." if name in here else did_you_mean(name, known) if known else ""
    raise NoSuchNameError(f"{owner}.{name}: there is no such attribute.{hint}", name=name, obj=obj)


def argument_names(called: type[Any]) -> tuple[list[str], bool]:
    """Return the names that a constructor's arguments have, and whether it takes any other too."""
    parameters = inspect.signature(called.__init__).parameters
    known, others = list(parameters)[1:], [p.annotation for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    if others and get_origin(others[0]) is Unpack:  # options of a parent's, which a TypedDict names
        return known[:-1] + list(get_type_hints(get_args(others[0])[0])), False
    return known, bool(others)


def check_arguments(
    owner: str,
    called: type[Any],
    args: Sequence[Any],
    values: Mapping[str, Any],
    what: str,
    elsewhere: Callable[[str], str] = lambda name: "",
) -> None:
    """Check the arguments of a constructor as Python is about to, with a text that helps.

    Args:
        owner, called: what the user called, for the text, and its class.
        args, values: arguments without a name, and those with one.
        what: what such an argument is called, for the text.
        elsewhere: says where else a name belongs that is not near to any here.

    Raises:
        ArgumentError: Python would raise a `TypeError`.
    """
    signature = inspect.signature(called.__init__)
    known, takes_any = argument_names(called)
    for name in values:
        if name not in known and not takes_any:
            hint = did_you_mean(name, known) or elsewhere(name)
            raise ArgumentError(f"{owner}: unknown {what} {name!r}.{hint}")
    try:
        signature.bind(None, *args, **values)
    except TypeError as error:
        by_name = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY][:2]
        hint = f" Give each {what} by name: {', '.join(f'{name}=...' for name in by_name)}." if by_name else ""
        problem = str(error).replace("keyword-only ", "")  # which Python 3.12 and later add
        raise ArgumentError(f"{owner}: {problem}.{hint}") from None


def explains_arguments(called: F) -> F:
    """Say which argument is meant where Python finds that a call's do not fit; it costs nothing where they do.

    Of a class it is the constructor that says so.

    Raises:
        ArgumentError: Python would raise a `TypeError`.
    """
    if isinstance(called, type):
        called.__init__ = explains_arguments(called.__init__)  # type: ignore[misc]  # of this class, no other
        return called

    @functools.wraps(called)
    def call(*args: Any, **values: Any) -> Any:
        try:
            return called(*args, **values)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # of the code that was called
            raise ArgumentError(_misfit(called, args, values)) from None

    return cast(F, call)


def _misfit(called: Callable[..., Any], args: Sequence[Any], values: Mapping[str, Any]) -> str:
    """Return the text of an error about arguments that do not fit."""
    signature = inspect.signature(called)
    owner = type(args[0]).__name__ if called.__name__ == "__init__" else called.__qualname__
    own = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    known = [p.name for p in own if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    needed = [p.name for p in own if p.default is p.empty and p.name in known]
    usage = LOADERS.get(owner, f"Write {owner}({', '.join([*needed, '...'])}).")
    for name in values:
        if name not in known and (hint := did_you_mean(name, known)):
            return f"{owner}: unknown argument {name!r}.{hint}"
    try:
        signature.bind(*args, **values)
    except TypeError as error:
        return f"{owner}: {error}. {usage}"
    return f"{owner}: the arguments do not fit. {usage}"
