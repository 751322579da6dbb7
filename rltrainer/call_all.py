"""Several calls that all must be made, whatever one of them raises: of what closes, flushes, shuts down."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def call_all(calls: Iterable[Callable[[], Any]], cause: BaseException | None = None) -> None:
    """Call all of these; then raise the first error, which the others are noted at.

    Args:
        calls: in this order.
        cause: an error that is on its way already; then all are noted at it, and none is raised.
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
    """Make all calls at the end of a block; what leaves the block is what was raised in it, if anything was."""
    try:
        yield
    except BaseException as error:
        call_all(calls, error)
        raise
    if not after_errors_only:
        call_all(calls)
