"""A checkpoint is a directory: one state file per part, and a manifest with the size and SHA-256 of each file.

It is written under a hidden name (see `atomic_write`), flushed to disk, and renamed into place; so a directory with a
manifest is whole. The blocks of large buffers are in segments beside it if it is one of a run's.
"""

import contextlib
import errno
import functools
import logging
import os
import stat
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rltrainer.atomic_write import (
    goes_on,
    hidden_name,
    hidden_names,
    make_folder,
    remove,
    remove_abandoned,
    sync_directory,
    write_errors,
)
from rltrainer.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from rltrainer.checkpoint.members import FileEntry, check_member, write_member
from rltrainer.checkpoint.segments import FOLDER, KIND
from rltrainer.errors import CheckpointError
from rltrainer.state_file import PackedState, pack_state, read_state
from rltrainer.types import State


def write_checkpoint(path: str | Path, parts: dict[str, State]) -> None:
    """Write a checkpoint that stands alone. Only a checkpoint is replaced, or an empty directory.

    Raises:
        CheckpointError: `path` is something else, or could not be written; what was there before is still there.
    """
    path = absolute_path(path)
    with write_errors(path, CheckpointError):
        make_folder(path.parent)
        recover(path)
        look_at(path, check_replaceable)
        remove_abandoned(path, "new")
        temporary = hidden_name(path, "new")
        try:
            write_parts(temporary, {name: pack_state(name, state) for name, state in parts.items()}, Manifest(files={}))
            move_into_place(temporary, path)
        finally:
            remove(temporary)
        remove_abandoned(path, "old")


def read_checkpoint(path: str | Path, mapped: Collection[str] = ()) -> dict[str, State]:
    """Read all parts of a checkpoint after checking every file against the manifest.

    Args:
        path: the directory.
        mapped: the parts whose tensors are left in their files, for who copies them at once.

    Returns:
        the states by part. What was saved in blocks is a list of their states.

    Raises:
        CheckpointError: the directory, the manifest or a file is missing, damaged or foreign; the text names it.
    """
    return look_at(absolute_path(path), lambda path: _read_whole(path, mapped))


def check_checkpoint(path: Path) -> Manifest:
    """Compare every file of a checkpoint with the manifest, and return that; for what is raised see `read_checkpoint`.

    States are not looked at: what is in the files is what was written.
    """
    try:
        manifest = read_manifest(path)
        found = set(os.listdir(path)) - {MANIFEST}
        for name in sorted(found ^ set(manifest.files)):
            raise CheckpointError(f"{path / name}: {'not in the manifest' if name in found else 'missing'}")
        for name, entry in manifest.files.items():
            check_member(path / name, entry)
        for name, entry in manifest.segments.items():
            _check_segment(segment_folder(path) / name, entry)
    except OSError as error:
        raise CheckpointError(f"{path}: the checkpoint could not be read ({error})") from error
    return manifest


def write_parts(directory: Path, parts: dict[str, PackedState], manifest: Manifest) -> Manifest:
    """Make a directory of one file per part and a manifest that names them too, flushed to disk; return that."""
    directory.mkdir()
    files = {f"{name}.safetensors": write_member(directory / f"{name}.safetensors", parts[name]) for name in parts}
    manifest = replace(manifest, files=files)
    manifest.write(directory)
    sync_directory(directory)
    return manifest


def segment_folder(path: Path) -> Path:
    """Return where the segments of a checkpoint lie: beside it, wherever a link to it is."""
    return Path(os.path.realpath(path)).parent / FOLDER


def read_states(path: Path, manifest: Manifest, mapped: Collection[str]) -> dict[str, State]:
    """Read the parts of a checkpoint that was compared with its manifest; see `read_checkpoint`."""
    states = {}

    @functools.cache  # blocks of equal contents share a segment: it is read once, however often it is named
    def segment(name: str, mapped: bool) -> State:
        return read_state(segment_folder(path) / name, KIND, CheckpointError, mapped, is_checked=True)

    for file in (path / name for name in manifest.files):
        states[file.stem] = read_state(file, file.stem, CheckpointError, file.stem in mapped, is_checked=True)
    for part, keys in manifest.blocks.items():
        for key, names in keys.items():
            if key in states[part]:
                raise CheckpointError(f"{path / MANIFEST}: {part}.{key} is in {part}.safetensors too")
            states[part][key] = [segment(name, part in mapped) for name in names]
    return states


def _read_whole(path: Path, mapped: Collection[str]) -> dict[str, State]:
    try:
        recover(path)
    except OSError as error:
        raise CheckpointError(f"{path}: the checkpoint could not be read ({error})") from error
    return read_states(path, check_checkpoint(path), mapped)


def _check_segment(file: Path, entry: FileEntry) -> None:
    try:
        check_member(file, entry)
    except CheckpointError as error:
        if os.path.lexists(file):
            raise
        hint = f"The checkpoints of a run need the folder {FOLDER!r} beside them; copy it with them"
        raise CheckpointError(f"{error}. {hint}, or save one that stands alone by trainer.save.") from None


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
