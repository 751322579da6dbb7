"""A checkpoint is a directory: one state file per part, and a manifest with the size and SHA-256 of each.

It is written under a hidden name (see `atomic_write`), flushed to disk, and renamed into place; so a directory with a
manifest is whole. One that it replaces is called `.name.<owner>.old` between two renames; where a kill leaves it so,
the next save or restore puts it back.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from rltrainer.atomic_write import abandoned, hidden_name, remove, remove_abandoned, sync_directory, write_errors
from rltrainer.errors import CheckpointError
from rltrainer.state_file import read_state, write_state
from rltrainer.types import State

T = TypeVar("T")
MANIFEST = "manifest.json"
FORMAT_VERSION = 1
MAX_MANIFEST_SIZE = 1 << 20
"""Bytes; a file that calls itself a manifest is read whole."""


def write_checkpoint(path: str | Path, parts: dict[str, State]) -> None:
    """Write one state file per part. Only a checkpoint is replaced, or an empty directory.

    Raises:
        CheckpointError: `path` is something else, or could not be written; what was there before is still there.
    """
    path = _absolute(path)
    with write_errors(path, CheckpointError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _recover(path)
        _look(path, _check_replaceable)
        remove_abandoned(path, "new")
        temporary = hidden_name(path, "new")
        try:
            _write_parts(temporary, parts)
            _move_into_place(temporary, path)
        finally:
            remove(temporary)
        sync_directory(path.parent)
        remove_abandoned(path, "old")


def read_checkpoint(path: str | Path, mapped: Collection[str] = ()) -> dict[str, State]:
    """Read all parts of a checkpoint after checking every file against the manifest.

    Args:
        path: the directory.
        mapped: the parts whose tensors are left in their file, for who copies them at once.

    Raises:
        CheckpointError: the directory, the manifest or a file is missing, damaged or foreign; the text names it.
    """
    return _look(_absolute(path), lambda path: _read_whole(path, mapped))


def _read_whole(path: Path, mapped: Collection[str]) -> dict[str, State]:
    try:
        _recover(path)
        files = _read_manifest(path)
        found = set(os.listdir(path)) - {MANIFEST}
        for name in sorted(found ^ set(files)):
            raise CheckpointError(f"{path / name}: {'not in the manifest' if name in found else 'missing'}")
        for name, expected in files.items():
            _check_file(path / name, expected)
    except OSError as error:
        raise CheckpointError(f"{path}: the checkpoint could not be read ({error})") from error
    stems = {Path(name).stem: path / name for name in files}
    return {
        stem: read_state(file, stem, CheckpointError, stem in mapped, is_checked=True) for stem, file in stems.items()
    }


def _write_parts(directory: Path, parts: dict[str, State]) -> None:
    directory.mkdir()
    files = {}
    for name, state in parts.items():
        file = directory / f"{name}.safetensors"
        checksum = write_state(file, name, state)
        files[file.name] = {"size": file.stat().st_size, "sha256": checksum}
    manifest = {"rltrainer": "checkpoint", "version": FORMAT_VERSION, "files": files}
    with open(directory / MANIFEST, "w") as stream:
        stream.write(json.dumps(manifest, indent=2))
        stream.flush()
        os.fsync(stream.fileno())
    sync_directory(directory)


def _move_into_place(temporary: Path, path: Path) -> None:
    """Rename a written directory to `path`; what stands there is moved away before, and removed after.

    Other threads and processes may do the same: who comes last replaces what the others wrote.
    """
    previous = hidden_name(path, "old")
    try:
        while not _rename(temporary, path):
            _look(path, _check_replaceable)
            remove(previous)  # there is one if another save was quicker; the other's checkpoint stands
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, previous)
    except BaseException:
        if os.path.lexists(previous) and not os.path.lexists(path):
            with contextlib.suppress(OSError):
                os.replace(previous, path)
        raise
    remove(previous)


def _rename(source: Path, path: Path) -> bool:
    """Rename a directory; return False if one that is not empty is in the way."""
    try:
        os.replace(source, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _look(path: Path, look: Callable[[Path], T]) -> T:
    """Return what a look at a directory returns; where it fails, and a save has just replaced that, look again."""
    while True:
        found = _identity(path)
        try:
            return look(path)
        except (CheckpointError, OSError):
            if _identity(path) == found:
                raise


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells whether it is still the same directory; None if there is none."""
    try:
        status = os.stat(path) if os.path.exists(path) else os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _check_replaceable(path: Path) -> None:
    """Raise a `CheckpointError` if anything would be lost but a checkpoint."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        problem = "is a symbolic link" if path.is_symlink() else "is no directory"
        raise CheckpointError(f"{path}: {problem}, and only a checkpoint is replaced. Save to another path.")
    names = set(os.listdir(path))
    if not names:
        return
    if MANIFEST not in names:
        raise CheckpointError(f"{path}: is no checkpoint, and only a checkpoint is replaced. Save to another path.")
    foreign = sorted(names - set(_read_manifest(path)) - {MANIFEST})
    foreign += sorted(name for name in names if not _is_regular(path / name))
    if foreign:
        text = f"{path}: holds {foreign[0]!r} beside a checkpoint, and would be replaced as a whole"
        raise CheckpointError(f"{text}. Move it away, or save to another path.")


def _recover(path: Path) -> None:
    """Put back the checkpoint that a killed save had moved away."""
    if os.path.lexists(path):
        return
    whole = [directory for directory in abandoned(path, "old") if _is_whole(directory)]
    if whole:
        newest = max(whole, key=lambda directory: (directory / MANIFEST).stat().st_mtime)
        os.replace(newest, path)
        logging.getLogger("rltrainer").warning("%s: put back from %s, where a killed save left it", path, newest.name)


def _is_whole(directory: Path) -> bool:
    try:
        files = _read_manifest(directory)
        return all(os.lstat(directory / name).st_size == files[name]["size"] for name in files)
    except (OSError, CheckpointError):
        return False


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of each file by its name."""
    file = path / MANIFEST
    if not _is_regular(file):
        what = "is no checkpoint: it has no manifest" if path.is_dir() else "there is no such checkpoint"
        raise CheckpointError(f"{path}: {what}")
    if file.stat().st_size > MAX_MANIFEST_SIZE:
        raise CheckpointError(f"{file}: not a manifest of rltrainer")
    try:
        manifest = json.loads(file.read_text())
        is_ours, version, files = manifest["rltrainer"] == "checkpoint", manifest["version"], manifest["files"]
        is_ours = is_ours and type(version) is int
        is_newer = is_ours and version > FORMAT_VERSION
        is_sound = is_ours and version == FORMAT_VERSION and all(map(_is_entry, files, files.values()))
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: damaged ({type(error).__name__}: {error})") from error
    if is_newer:
        text = f"written in format {version}, this release reads up to {FORMAT_VERSION}. Upgrade it."
        raise CheckpointError(f"{file}: {text}")
    if not is_sound:
        raise CheckpointError(f"{file}: not a manifest of rltrainer")
    return dict(files)


def _is_entry(name: str, entry: Any) -> bool:
    is_name = Path(name).name == name and name.endswith(".safetensors")
    return is_name and type(entry["size"]) is int and isinstance(entry["sha256"], str)


def _check_file(file: Path, expected: dict[str, Any]) -> None:
    if not _is_regular(file):
        raise CheckpointError(f"{file}: is no regular file")
    size = file.stat().st_size
    if size != expected["size"]:
        raise CheckpointError(f"{file}: expected {expected['size']} bytes, found {size}")
    if _sha256(file) != expected["sha256"]:
        raise CheckpointError(f"{file}: its contents changed after it was written (SHA-256 differs)")


def _is_regular(file: Path) -> bool:
    """Return whether it is a file, and no link, pipe or device, whose contents are somewhere else or never come."""
    try:
        return stat.S_ISREG(os.lstat(file).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _absolute(path: str | Path) -> Path:
    if Path(path).name in ("", ".."):
        raise CheckpointError(f"{path}: must end in the name of a checkpoint")
    return Path(os.path.abspath(path))
