"""Names of arguments and attributes: what is wrong with a call's arguments, what a misspelt or foreign name means."""

import dataclasses
import difflib
import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, get_args, get_origin, get_type_hints

from rltrainer.errors import ArgumentError, NoSuchNameError
from rltrainer.validation.hints import ADVICE, ARGUMENTS, ATTRIBUTES, THEIRS, Advice

T = TypeVar("T")
P = ParamSpec("P")


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a misspelt or foreign one stands for; None if none is near."""
    ours = {other: [each for each in names if each in known] for other, names in ARGUMENTS.items()}
    theirs = {other: names[0] for other, names in ours.items() if names}
    if name in theirs:
        return theirs[name]
    # A misspelt name of another library; with the usual cutoff of 0.6, names that only look alike would win over ours.
    foreign = difflib.get_close_matches(name, theirs, n=1, cutoff=0.8)
    meant = next(iter(difflib.get_close_matches(name, [*known, *foreign], n=1)), None)
    return meant if meant is None or meant in known else theirs[meant]


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return ` Did you mean 'lr'?` for the known name that is meant, other advice, or nothing if none is near."""
    is_argument = any(ours in known for ours in ARGUMENTS.get(name, ()))
    if not is_argument and (advice := _advice(ADVICE, name, known)):
        return advice
    meant = nearest(name, known)
    return "" if meant is None else f" Did you mean {meant!r}?"


def _advice(rows: Sequence[Advice], name: str, known: Collection[str]) -> str:
    ours = name if name in THEIRS else ARGUMENTS.get(name, (name,))[0]
    found = (advice for needed, names, advice in rows if name in names and needed in known)
    return next((f" {advice.format(ours)}" for advice in found), "")


class SuggestsAttributes:
    """Parent of classes that say what stands for another library's attribute."""

    if not TYPE_CHECKING:  # to a type checker every name would exist

        def __getattr__(self, name: str) -> Any:
            """Raise a `NoSuchNameError` with advice, or Python's own error; called for names that are not found."""
            if advice := _advice(ATTRIBUTES, name, [cls.__name__ for cls in type(self).__mro__]):
                raise NoSuchNameError(f"{type(self).__name__}.{name}: there is no such attribute.{advice}", name=name)
            return object.__getattribute__(self, name)  # raises; from a property the error that is its own


class ExplainsArguments(ABCMeta):
    """Metaclass of classes with constructors that suggest the intended argument."""

    def __call__(cls: type[T], *args: Any, **values: Any) -> T:
        """Make an object; an `ArgumentError` explains unfit arguments."""
        try:
            return super().__call__(*args, **values)  # type: ignore[misc, no-any-return]  # of this metaclass
        except TypeError:
            # If the arguments fit, the error comes from the code that was called, and stays.
            if inspect.isabstract(cls):
                ours = ", ".join(each.__name__ for each in cls.__subclasses__())
                raise ArgumentError(f"{cls.__name__}: is abstract. Build one of its subclasses: {ours}.") from None
            what = "field" if dataclasses.is_dataclass(cls) else "argument"
            hint_of = cls.argument_hint  # type: ignore[attr-defined]  # of this metaclass
            check_arguments(cls.__name__, cls.__init__, (None, *args), values, what, hint_of)
            raise

    def argument_hint(cls, name: str) -> str:
        """Return where else a name belongs if no argument of the constructor is near."""
        return ""


def explains_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function or method raise an `ArgumentError` that explains unfit arguments."""

    @functools.wraps(function)
    def explained(*args: P.args, **values: P.kwargs) -> T:
        try:
            return function(*args, **values)
        except TypeError:
            check_arguments(function.__qualname__.removesuffix(".__init__"), function, args, values, "argument")
            raise

    return explained


def argument_names(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of a function's arguments, and whether it takes any other name too."""
    parameters = inspect.signature(function).parameters
    known = [name for name in parameters if name != "self"]
    others = [p.annotation for p in parameters.values() if p.kind is p.VAR_KEYWORD]
    if others and get_origin(others[0]) is Unpack:  # the parent's options, which a TypedDict names
        return known[:-1] + list(get_type_hints(get_args(others[0])[0])), False
    return known, bool(others)


def check_arguments(
    owner: str, function: Callable[..., Any], args: Sequence[Any], values: Mapping[str, Any], what: str,
    hint_of: Callable[[str], str] = lambda name: "",
) -> None:  # fmt: skip
    """Raise an `ArgumentError` if arguments, `self` included, do not fit a function; `what` names one of them."""
    signature = inspect.signature(function)
    known, takes_any = argument_names(function)
    for name in values:
        if name not in known and not takes_any:
            hint = did_you_mean(name, known) or hint_of(name)
            raise ArgumentError(f"{owner}: unknown {what} {name!r}.{hint}")
    try:
        signature.bind(*args, **values)
    except TypeError as error:
        parameters = [p for p in signature.parameters.values() if p.name != "self"]
        by_name = [f"{p.name}=..." for p in parameters if p.kind is p.KEYWORD_ONLY][:2]
        needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        hint = f"Write {owner}({', '.join([*needed, '...'])})."
        hint = f"Give each {what} by name: {', '.join(by_name)}." if by_name else hint
        problem = str(error).replace("keyword-only ", "")  # which Python 3.12 and later add
        raise ArgumentError(f"{owner}: {problem}. {hint}") from None
