"""Single files of checkpoints: written so that they are on the disk, opened only if they are files, and compared."""

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rltrainer.errors import CheckpointError
from rltrainer.regular_file import open_regular
from rltrainer.state_file import PackedState

_NO_FILE = (errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR)
"""Errors of the system for a link, a folder, a pipe, a device or a socket."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size and SHA-256 of a file."""

    size: int
    sha256: str


def write_member(file: Path, state: PackedState) -> FileEntry:
    """Write a new file, flushed to disk."""
    with open(file, "xb") as stream:
        checksum = state.write(stream)
        size = stream.tell()
        stream.flush()
        os.fsync(stream.fileno())
    return FileEntry(size, checksum)


def open_member(file: Path) -> BinaryIO:
    """Open a file to be read, that is no link, pipe or device: their contents are somewhere else or never come.

    Raises:
        CheckpointError: it is missing or no regular file.
        OSError: it could not be opened.
    """
    try:
        return open_regular(file, follows_links=False)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{file}: missing") from None
    except OSError as error:
        if error.errno in _NO_FILE:
            raise CheckpointError(f"{file}: is no regular file") from None
        raise


def check_member(file: Path, expected: FileEntry) -> None:
    """Compare a file with its size and checksum.

    Raises:
        CheckpointError: it is missing, no regular file, or was changed.
        OSError: it could not be read.
    """
    with open_member(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size != expected.size:
            raise CheckpointError(f"{file}: expected {expected.size} bytes, found {size}")
        found = hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]  # what `open` returns has readinto
        if found.hexdigest() != expected.sha256:
            raise CheckpointError(f"{file}: its contents changed after it was written (SHA-256 differs)")
