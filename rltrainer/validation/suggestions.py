"""Names of arguments: what is wrong with those of a call, and which one a misspelt or foreign name may stand for."""

import dataclasses
import difflib
import inspect
from abc import ABCMeta
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar, Unpack, get_args, get_origin, get_type_hints

from rltrainer.errors import ArgumentError
from rltrainer.validation.hints import ADVICE, ARGUMENTS

T = TypeVar("T")


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a misspelt or foreign one stands for; None if none is near."""
    theirs = {
        other: ours for other, names in ARGUMENTS.items() if (ours := next(filter(known.__contains__, names), None))
    }
    if name in theirs:
        return theirs[name]
    # A misspelt name of another library; with the usual cutoff of 0.6, names that only look alike would win over ours.
    foreign = difflib.get_close_matches(name, theirs, n=1, cutoff=0.8)
    meant = next(iter(difflib.get_close_matches(name, [*known, *foreign], n=1)), None)
    return meant if meant is None or meant in known else theirs[meant]


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return ` Did you mean 'lr'?` for the known name that is meant, other advice, or nothing if none is near."""
    needed, advice = ADVICE.get(name, ("", ""))
    if needed in known and not any(ours in known for ours in ARGUMENTS.get(name, ())):
        return f" {advice}"
    meant = nearest(name, known)
    return "" if meant is None else f" Did you mean {meant!r}?"


class ExplainsArguments(ABCMeta):
    """Metaclass of classes whose constructors suggest the argument that was meant."""

    def __call__(cls: type[T], *args: Any, **values: Any) -> T:
        """Make an object; an `ArgumentError` explains arguments that do not fit."""
        try:
            return super().__call__(*args, **values)  # type: ignore[misc, no-any-return]  # of this metaclass
        except TypeError:
            # Of the arguments, or of the code that was called: then the arguments fit, and the error stays.
            if inspect.isabstract(cls):
                ours = ", ".join(each.__name__ for each in cls.__subclasses__())
                raise ArgumentError(f"{cls.__name__}: is abstract. Build one of its subclasses: {ours}.") from None
            check_arguments(cls.__name__, cls, args, values, "field" if dataclasses.is_dataclass(cls) else "argument")
            raise

    def argument_hint(cls, name: str) -> str:
        """Return where else a name belongs that is near to no argument of the constructor."""
        return ""


def argument_names(called: type[Any]) -> tuple[list[str], bool]:
    """Return the names of a constructor's arguments, and whether it takes any other name too."""
    parameters = inspect.signature(called.__init__).parameters
    known, others = list(parameters)[1:], [p.annotation for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    if others and get_origin(others[0]) is Unpack:  # the parent's options, which a TypedDict names
        return known[:-1] + list(get_type_hints(get_args(others[0])[0])), False
    return known, bool(others)


def check_arguments(owner: str, called: Any, args: Sequence[Any], values: Mapping[str, Any], what: str) -> None:
    """Raise an `ArgumentError` if arguments do not fit the constructor of `called`; `what` is the word for one."""
    signature = inspect.signature(called.__init__)
    known, takes_any = argument_names(called)
    for name in values:
        if name not in known and not takes_any:
            hint = did_you_mean(name, known) or called.argument_hint(name)
            raise ArgumentError(f"{owner}: unknown {what} {name!r}.{hint}")
    try:
        signature.bind(None, *args, **values)
    except TypeError as error:
        parameters = list(signature.parameters.values())[1:]
        by_name = [f"{p.name}=..." for p in parameters if p.kind is p.KEYWORD_ONLY][:2]
        needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        hint = f"Write {owner}({', '.join([*needed, '...'])})."
        hint = f"Give each {what} by name: {', '.join(by_name)}." if by_name else hint
        problem = str(error).replace("keyword-only ", "")  # which Python 3.12 and later add
        raise ArgumentError(f"{owner}: {problem}. {hint}") from None
