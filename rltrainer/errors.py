"""The exceptions that rltrainer raises. Every text names the field, file or env, the rule, the value and one hint."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\bid=\d{9,}(, )?")
MAX_LENGTH = 120
"""Characters of a value in an error's text."""


def escaped(text: str, kept: str = "") -> str:
    """Escape the characters of a text that move a terminal's cursor or colour it, except those in `kept`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


class RLTrainerError(Exception):
    """Parent of every exception that rltrainer raises on purpose."""

    @classmethod
    def about(cls, owner: str, field: str, rule: str, value: object, hint: str = "") -> Self:
        """Return an error `<owner>.<field>: <rule>; got <value> (<type>). <hint>`."""
        kind = "type" if isinstance(value, type) else type(value).__name__
        text = f"{owner}.{field}: {rule}; got {readable(value)} ({kind})"
        return cls(f"{text}. {hint}" if hint else text)

    def __str__(self) -> str:
        """Return the text, which may quote a file, in a form that a terminal can show."""
        return escaped(super().__str__(), kept="\n\t")


class ParamsError(RLTrainerError, ValueError):
    """A field of a params object breaks its rule, or two fields contradict each other."""


class ArgumentError(ParamsError, TypeError):
    """An argument is unknown, missing, or given without its name: what Python calls a TypeError."""


class ReturnedError(ParamsError, TypeError):
    """A user's function returned what it must not."""


class FrozenParamsError(ParamsError, dataclasses.FrozenInstanceError):
    """A field of params was assigned to."""


class NoSuchNameError(RLTrainerError, AttributeError):
    """The package or an object has no such attribute; the text says what stands for another library's."""


class SpaceError(RLTrainerError, ValueError):
    """Data, a policy, a buffer or an env does not fit a gymnasium space."""


class CheckpointError(RLTrainerError):
    """A saved trainer or algorithm cannot be written, read, or continued with these params."""


class ReplayBufferError(RLTrainerError):
    """A buffer cannot do what was asked: it is empty, short, damaged, or its data is not usable."""


class EnvError(RLTrainerError):
    """An environment failed; the text names its index and, where known, its step."""


class NonFiniteError(RLTrainerError):
    """NaN or infinity where only finite numbers make sense: an observation, a reward, a loss or a gradient."""


class RankLostError(RLTrainerError):
    """Another rank of a run has failed, is gone or does not answer; the text names it and the cause."""


NOT_OF_ENV = (SpaceError, RankLostError)
"""Errors that leave a step of an env as they are: what else it raises is the env's own failure."""


class RanksDifferError(RLTrainerError):
    """Networks that all ranks of a run share have become different; the text names the tensor and the rank."""


class ExportError(RLTrainerError):
    """A policy is no graph of tensors that could act elsewhere, or it acts otherwise there."""


class MissingExtraError(RLTrainerError, ImportError):
    """An optional dependency is not installed; the text names the extra that brings it."""


def install_extra(extra: str) -> str:
    """Return the sentence with the command that installs an extra."""
    return f'Run: pip install "rltrainer[{extra}]"'


@contextmanager
def importing_extra(owner: str, extra: str) -> Iterator[None]:
    """Raise a `MissingExtraError` for an owner that cannot import the packages of an extra."""
    try:
        yield
    except ImportError as error:
        text = f"{owner} needs a package that is not installed: {error}. {install_extra(extra)}"
        raise MissingExtraError(text) from error


def without_addresses(text: str) -> str:
    """Return a text without addresses of objects, which differ from run to run."""
    return _ADDRESS.sub("", text)


def readable(value: object) -> str:
    """Return a value as a short text, the same in every run: its repr without addresses."""
    kind = type(value).__name__
    try:
        text = without_addresses(repr(value))
    except Exception:  # an object half made, or a number too large to be written
        return f"<{kind}>"
    if len(text) <= MAX_LENGTH:
        return text
    if "\n" not in text:
        return f"{text[:MAX_LENGTH]}..."
    shape = getattr(value, "shape", None)
    return f"<{kind} of shape {tuple(shape)}>" if shape else f"<{kind}>"  # an array's rows, a network's layers


def call_all(calls: Iterable[Callable[[], Any]], cause: BaseException | None = None) -> None:
    """Call all of these; then raise the first error, with the others as notes.

    If a `cause` is being raised already, it takes all the notes, and nothing is raised here.
    """
    first = cause
    for call in calls:
        try:
            call()
        except BaseException as error:
            if first is None:
                first = error
            else:
                first.add_note(f"While this was on its way, {type(error).__name__} was raised: {error}")
                for note in getattr(error, "__notes__", ()):
                    first.add_note(note)
    if first is not cause and first is not None:
        raise first


@contextmanager
def at_the_end(*calls: Callable[[], Any], after_errors_only: bool = False) -> Iterator[None]:
    """Make all calls at the end of a block; an error of the block goes before theirs."""
    try:
        yield
    except BaseException as error:
        call_all(calls, error)
        raise
    if not after_errors_only:
        call_all(calls)
