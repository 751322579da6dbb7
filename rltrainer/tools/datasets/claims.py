"""Claims of data sets' files, compared with their length, and errors that tell of their damage."""

import contextlib
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rltrainer.data.memory_forecast import check_fits
from rltrainer.data.storage import Array
from rltrainer.errors import ReplayBufferError, RLTrainerError, readable
from rltrainer.files.regular_file import neighbours_hint

MAX_RATIO = 1032
"""Bytes that deflate makes of one byte at most; what other compressions make of data sets is less."""
FREE_NBYTES = 1 << 20
"""Bytes that a file may claim however short it is."""
USUAL_ERRORS: tuple[type[Exception], ...] = (
    OSError, ValueError, LookupError, TypeError, RuntimeError, MemoryError, EOFError,
)  # fmt: skip
"""Errors that packages raise about damaged files, besides classes of their own."""


def nbytes_of(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return the bytes of an array; an axis of 0 counts as 1, since a space is made of the others."""
    return prod(max(n, 1) for n in shape) * dtype.itemsize


def check_claim(origin: str, path: Path, claimed: int, length: int) -> None:
    """Compare the bytes that a file's columns would take with the file's length, and with the memory that is left.

    Raises:
        ReplayBufferError: they are more than could be compressed into it, or than fit.
    """
    limit = max(FREE_NBYTES, MAX_RATIO * length)
    if claimed > limit:
        text = f"expected columns of at most {limit:,} bytes in a file of {length:,}, found {claimed:,}"
        raise ReplayBufferError(f"{origin}: {text}")
    check_fits(origin.partition(":")[0], "path", str(path), 2 * claimed, torch.device("cpu"))  # type: ignore[arg-type]  # only printed


@contextlib.contextmanager
def telling(origin: str) -> Iterator[None]:
    """Let our own errors begin with their origin: the reader and its path."""
    try:
        yield
    except RLTrainerError as error:
        if str(error).startswith(origin):
            raise
        raise type(error)(f"{origin}: {error}") from error


@contextlib.contextmanager
def reading(origin: str, what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn what a package raises about a damaged file into a `ReplayBufferError`.

    Args:
        origin: what the text begins with.
        what: what the file should be, such as "an HDF5 file".
        errors: what the package raises besides the usual.
    """
    try:
        with telling(origin):
            yield
    except RLTrainerError:
        raise
    except FileNotFoundError as error:
        path = Path(origin.partition(": ")[2])  # or with the member of a folder behind it
        hint = neighbours_hint(path) if ": " not in str(path) else ""
        raise ReplayBufferError(f"{origin}: there is no such file{hint}") from error
    except (*USUAL_ERRORS, *errors) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        text = f"expected {what}, found {type(error).__name__}: {readable(reason)}"
        raise ReplayBufferError(f"{origin}: {text}") from error


def numbers(origin: str, member: str, array: Array) -> Array:
    """Return an array of numbers in this machine's byte order.

    Raises:
        ReplayBufferError: it holds something else.
    """
    if array.dtype.kind not in "biuf":
        raise ReplayBufferError(f"{origin}: member {readable(member)}: expected numbers, found {array.dtype}")
    return np.asarray(array, array.dtype.newbyteorder("="))
