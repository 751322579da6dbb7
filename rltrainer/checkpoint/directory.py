"""A checkpoint is a directory: one state file per part, and a manifest with the size and SHA-256 of each file.

It is written under a hidden name (see `atomic_write`), flushed to disk, and renamed into place; so a directory with a
manifest is whole. The rows of a buffer are in files beside it if it is one of a run's.
"""

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from rltrainer.checkpoint.manifest import MANIFEST, Manifest, check_member, read_manifest, write_member
from rltrainer.data.buffer_state import RowFile
from rltrainer.errors import CheckpointError
from rltrainer.files.atomic_write import (
    goes_on,
    hidden_name,
    hidden_names,
    make_folder,
    remove,
    remove_abandoned,
    sync_directory,
    write_errors,
)
from rltrainer.state.state_file import PackedState, pack_state, read_state
from rltrainer.types import State

ROWS = "rows"
"""The folder beside a run's checkpoints for the rows of its buffers, the kind of a file in it, the key in a state."""


def write_checkpoint(path: str | Path, parts: dict[str, State], overwrite: bool = False) -> None:
    """Write a checkpoint that stands alone.

    Args:
        path: the directory.
        parts: the state of each part.
        overwrite: whether it takes the place of a checkpoint, or an empty folder; nothing else is ever replaced.

    Raises:
        CheckpointError: `path` exists, is something else, or could not be written; what was there is still there.
    """
    path = absolute_path(path)
    with write_errors(path, CheckpointError):
        make_folder(path.parent)
        recover(path)
        if os.path.lexists(path):
            _check_replaceable(path, overwrite)
        remove_abandoned(path, "new")
        temporary = hidden_name(path, "new")
        try:
            write_parts(temporary, {name: pack_state(name, state) for name, state in parts.items()}, Manifest(files={}))
            _move_into_place(temporary, path, overwrite)
        finally:
            remove(temporary)
        remove_abandoned(path, "old")


def read_checkpoint(path: str | Path, mapped: Collection[str] = ()) -> dict[str, State]:
    """Read all parts of a checkpoint after checking every file against the manifest.

    Args:
        path: the directory.
        mapped: the parts whose tensors are left in their files, for who copies them at once.

    Returns:
        the states by part.

    Raises:
        CheckpointError: the directory, the manifest or a file is missing, damaged or foreign; the text names it.
    """
    states = read_logged(path, mapped)
    for state in states.values():
        for rows in state[ROWS] if isinstance(state.get(ROWS), list) else ():
            if isinstance(rows, dict) and isinstance(rows.get("file"), RowFile):
                del rows["file"]
    return states


def read_logged(path: str | Path, mapped: Collection[str] = ()) -> dict[str, State]:
    """Read a checkpoint as `read_checkpoint` does; rows that a file of the run holds name that as their "file"."""
    path = absolute_path(path)
    try:
        recover(path)
    except OSError as error:
        raise CheckpointError(f"{path}: the checkpoint could not be read ({error})") from error
    return read_states(path, check_checkpoint(path), mapped)


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
        for name, entry in manifest.shared.items():
            file = rows_folder(path) / name
            if not os.path.lexists(file):
                hint = f"The checkpoints of a run need the folder {ROWS!r} beside them; copy it with them"
                raise CheckpointError(f"{file}: missing. {hint}, or save one that stands alone by trainer.save.")
            check_member(file, entry)
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


def rows_folder(path: Path) -> Path:
    """Return where the rows of a run's checkpoint lie: beside it, wherever a link to it is."""
    return Path(os.path.realpath(path)).parent / ROWS


def read_states(path: Path, manifest: Manifest, mapped: Collection[str]) -> dict[str, State]:
    """Read the parts of a checkpoint that was compared with its manifest; see `read_logged`."""
    states = {}
    for file in (path / name for name in manifest.files):
        states[file.stem] = read_state(file, file.stem, CheckpointError, file.stem in mapped, is_checked=True)
    for part, entries in manifest.rows.items():
        newest = states[part].get(ROWS)
        if not isinstance(newest, list):
            raise CheckpointError(f"{path / part}.safetensors: expected a list of rows, found none")
        logged = []
        for name, entry in entries.items():
            rows = read_state(rows_folder(path) / name, ROWS, CheckpointError, part in mapped, is_checked=True)
            logged.append(rows | {"file": RowFile(name, entry.size, entry.sha256)})
        states[part][ROWS] = logged + newest
    return states


def _move_into_place(temporary: Path, path: Path, overwrite: bool) -> None:
    """Rename a written directory to `path`; what is overwritten is moved away before, and removed after.

    It is removed when the new name is flushed to disk: a machine that loses its power keeps one of the two.
    """
    previous = hidden_name(path, "old")
    try:
        if overwrite and os.path.lexists(path):
            os.replace(path, previous)
        os.replace(temporary, path)
    except BaseException:
        if os.path.lexists(previous) and not os.path.lexists(path):
            with contextlib.suppress(OSError):
                os.replace(previous, path)
        raise
    sync_directory(path.parent)
    remove(previous)


def _check_replaceable(path: Path, overwrite: bool) -> None:
    """Raise a `CheckpointError` if anything would be lost but a checkpoint, or that unasked."""
    if not overwrite:
        raise CheckpointError(f"{path}: exists, and is not replaced. Save to another path, or with overwrite=True.")
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

    The files of a save that is under way are left alone.
    """
    if os.path.lexists(path):
        return
    left = [directory for directory, owner in hidden_names(path, "old") if not goes_on(owner) and _is_whole(directory)]
    if left:
        newest = max(left, key=lambda directory: (directory / MANIFEST).stat().st_mtime)
        try:
            os.replace(newest, path)
        except OSError as error:  # somebody else was quicker
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
            return
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
