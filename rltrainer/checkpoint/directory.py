"""A checkpoint is a directory: one state file per part, and a manifest with the size and SHA-256 of each.

It is written under a hidden name, flushed to disk, and renamed into place; so a directory with a manifest is whole.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from rltrainer.errors import CheckpointError
from rltrainer.state_file import read_state, write_state
from rltrainer.types import State

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


def write_checkpoint(path: str | Path, parts: dict[str, State]) -> None:
    """Write one state file per part; an existing checkpoint at `path` is replaced.

    Raises:
        CheckpointError: the disk refused; what was there before is still there.
    """
    path = Path(path)
    temporary, previous = (path.with_name(f".{path.name}.{os.getpid()}.{suffix}") for suffix in ("new", "old"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        files = {}
        for name, state in parts.items():
            file = temporary / f"{name}.safetensors"
            write_state(file, name, state)
            files[file.name] = {"size": file.stat().st_size, "sha256": _sha256(file)}
        manifest = {"rltrainer": "checkpoint", "version": FORMAT_VERSION, "files": files}
        _write_text(temporary / MANIFEST, json.dumps(manifest, indent=2))
        _sync(temporary)
        if path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        if previous.exists() and not path.exists():
            os.replace(previous, path)
        raise CheckpointError(
            f"{path}: the checkpoint could not be written ({error}). What was there is unchanged."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(previous, ignore_errors=True)


def read_checkpoint(path: str | Path) -> dict[str, State]:
    """Read all parts of a checkpoint after checking every file against the manifest.

    Raises:
        CheckpointError: the directory, the manifest or a file is missing, damaged or foreign; the text names it.
    """
    path = Path(path)
    files = _read_manifest(path)
    found = {file.name for file in path.iterdir()} - {MANIFEST}
    for name in sorted(found ^ set(files)):
        raise CheckpointError(f"{path / name}: {'not in the manifest' if name in found else 'missing'}")
    for name, expected in files.items():
        file = path / name
        size = file.stat().st_size
        if size != expected["size"]:
            raise CheckpointError(f"{file}: expected {expected['size']} bytes, found {size}")
        if _sha256(file) != expected["sha256"]:
            raise CheckpointError(f"{file}: its contents changed after it was written (SHA-256 differs)")
    return {(stem := Path(name).stem): read_state(path / name, stem, CheckpointError) for name in files}


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file():
        what = "is no checkpoint: it has no manifest" if path.is_dir() else "there is no such checkpoint"
        raise CheckpointError(f"{path}: {what}")
    try:
        manifest = json.loads(file.read_text())
        version, files = manifest["version"], dict(manifest["files"])
        is_sound = manifest["rltrainer"] == "checkpoint" and all(
            Path(name).name == name and isinstance(entry["size"], int) and isinstance(entry["sha256"], str)
            for name, entry in files.items()
        )
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: damaged ({type(error).__name__}: {error})") from error
    if not is_sound:
        raise CheckpointError(f"{file}: not a manifest of rltrainer")
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{file}: written in format {version}, this release reads up to {FORMAT_VERSION}. Upgrade it."
        )
    return files


def _sha256(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_text(file: Path, text: str) -> None:
    with open(file, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
