"""Replacing one checkpoint by another: nothing else is ever replaced, and one of the two is always there.

One that is replaced is called `.name.<owner>.old` between two renames; where a kill leaves it so, the next save or
restore puts it back.
"""

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rltrainer.atomic_write import goes_on, hidden_name, hidden_names, remove, sync_directory
from rltrainer.checkpoint.manifest import MANIFEST, read_manifest
from rltrainer.errors import CheckpointError

T = TypeVar("T")


def look_at(path: Path, look: Callable[[Path], T]) -> T:
    """Return what a look at a directory returns; where it fails, and a save has just replaced that, look again."""
    while True:
        found = _identity(path)
        try:
            return look(path)
        except (CheckpointError, OSError):
            if _identity(path) == found:
                raise


def move_into_place(temporary: Path, path: Path) -> None:
    """Rename a written directory to `path`; what stands there is moved away before, and removed after.

    It is removed when the new name is flushed to disk: a machine that loses its power keeps one of the two.

    Other threads and processes may do the same: who comes last replaces what the others wrote.
    """
    previous = hidden_name(path, "old")
    try:
        while not _rename(temporary, path):
            look_at(path, check_replaceable)
            remove(previous)  # there is one if another save was quicker; the other's checkpoint stands
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, previous)
    except BaseException:
        if os.path.lexists(previous) and not os.path.lexists(path):
            with contextlib.suppress(OSError):
                os.replace(previous, path)
        raise
    sync_directory(path.parent)
    remove(previous)


def check_replaceable(path: Path) -> None:
    """Raise a `CheckpointError` if anything would be lost but a checkpoint."""
    try:
        if os.path.lexists(path):
            _check_contents(path)
    except (CheckpointError, OSError):
        if os.path.lexists(path):  # else somebody has moved it away just now
            raise


def _check_contents(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        problem = "is a symbolic link" if path.is_symlink() else "is no directory"
        raise CheckpointError(f"{path}: {problem}, and only a checkpoint is replaced. Save to another path.")
    names = set(os.listdir(path))
    if not names:
        return
    if MANIFEST not in names:
        raise CheckpointError(f"{path}: is no checkpoint, and only a checkpoint is replaced. Save to another path.")
    foreign = sorted(names - set(read_manifest(path).files) - {MANIFEST})
    foreign += sorted(name for name in names if not stat.S_ISREG(os.lstat(path / name).st_mode))
    if foreign:
        text = f"{path}: holds {foreign[0]!r} beside a checkpoint, and would be replaced as a whole"
        raise CheckpointError(f"{text}. Move it away, or save to another path.")


def recover(path: Path) -> None:
    """Put back the checkpoint that a killed save had moved away, also one of a container that is gone.

    Of a save that goes on nothing is touched; one that only seems to be over moves it away once more.
    """
    if os.path.lexists(path):
        return
    left = [directory for directory, owner in hidden_names(path, "old") if not goes_on(owner) and _is_whole(directory)]
    if left:
        newest = max(left, key=lambda directory: (directory / MANIFEST).stat().st_mtime)
        with contextlib.suppress(FileNotFoundError):  # somebody else was quicker
            if _rename(newest, path):
                text = "%s: put back from %s, where a killed save left it"
                logging.getLogger("rltrainer").warning(text, path, newest.name)


def absolute_path(path: str | Path) -> Path:
    """Return the path of a checkpoint that may not be there.

    Raises:
        CheckpointError: it has no name.
    """
    if Path(path).name in ("", ".."):
        raise CheckpointError(f"{path}: must end in the name of a checkpoint")
    return Path(os.path.abspath(path))


def _is_whole(directory: Path) -> bool:
    try:
        files = read_manifest(directory).files
        return all(os.lstat(directory / name).st_size == entry.size for name, entry in files.items())
    except (OSError, CheckpointError):
        return False


def _rename(source: Path, path: Path) -> bool:
    """Rename a directory; return False if one that is not empty is in the way."""
    try:
        os.replace(source, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells whether it is still the same directory; None if there is none."""
    try:
        status = os.stat(path) if os.path.exists(path) else os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
