"""Opens regular files only, and reads a limited part at once."""

import contextlib
import difflib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# A read of a pipe waits, a device never ends, and values take some 30 times the memory of their text.
MAX_TEXT_SIZE = 1 << 25
"""Bytes of a text that are read at once: a file of JSON, or a line of a log."""

_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


def open_regular(path: str | os.PathLike[str], *, follows_links: bool = True) -> BinaryIO:
    """Open a file to be read; an `OSError` says that it is a pipe, a device, a socket, a folder, or a link."""
    # O_NONBLOCK: opening a pipe would wait for its other end.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follows_links else getattr(os, "O_NOFOLLOW", 0))
    descriptor = os.open(path, flags)
    try:
        # The opened file's mode: by now the path may name another file.
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "something else")
            raise OSError(errno.EINVAL, f"is {kind}, no regular file", os.fspath(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def read_errors(path: Path, error: type[Exception]) -> Iterator[None]:
    """Raise an `OSError` as `error`, with path and cause."""
    try:
        yield
    except OSError as cause:
        raise error(f"{path}: {cause.strerror or cause}") from cause


def read_text(file: BinaryIO) -> bytes:
    """Return all of a file of text; an `OSError` if it is longer than `MAX_TEXT_SIZE`."""
    text = file.read(MAX_TEXT_SIZE + 1)
    if len(text) > MAX_TEXT_SIZE:
        raise OSError(errno.EFBIG, f"is longer than {MAX_TEXT_SIZE:,} bytes")
    return text


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file of text, with their ends; an `OSError` if one is longer than `MAX_TEXT_SIZE`."""
    while line := file.readline(MAX_TEXT_SIZE + 1):
        if len(line) > MAX_TEXT_SIZE:
            raise OSError(errno.EFBIG, f"has a line of more than {MAX_TEXT_SIZE:,} bytes")
        yield line


def neighbours_hint(path: str | os.PathLike[str]) -> str:
    """Return ". " and a sentence about the files beside a missing path, or ""."""
    path = Path(path)
    if not path.parent.is_dir():
        return f". There is no folder {path.parent} either"
    try:
        there = sorted(each.name for each in path.parent.iterdir() if each.suffix == path.suffix)
    except OSError:
        return ""
    if nearest := difflib.get_close_matches(path.name, there, n=1):
        return f". Did you mean {str(path.parent / nearest[0])!r}?"
    return f". In {path.parent.resolve()} there are {', '.join(there[:5])}{', ...' * (len(there) > 5)}" if there else ""
