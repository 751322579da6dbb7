"""A checkpoint is a directory: one state file per part, and a manifest with the size and SHA-256 of each file.

It is written under a hidden name (see `atomic_write`), flushed to disk, and renamed into place; so a directory with a
manifest is whole. The blocks of large buffers are in segments beside it if it is one of a run's.
"""

import functools
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from rltrainer.atomic_write import hidden_name, make_folder, remove, remove_abandoned, sync_directory, write_errors
from rltrainer.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from rltrainer.checkpoint.members import FileEntry, check_member, write_member
from rltrainer.checkpoint.replacing import absolute_path, check_replaceable, look_at, move_into_place, recover
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
