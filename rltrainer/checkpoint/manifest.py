"""The manifest of a checkpoint: the files that belong to it, with the size and SHA-256 of each. Data from anywhere."""

import errno
import hashlib
import json
import math
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from rltrainer.errors import CheckpointError
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import neighbours_hint, open_regular, read_text
from rltrainer.state.state_file import PackedState, refuse_version

MANIFEST = "manifest.json"
FORMAT_VERSION = 3
"""3: rows of buffers in files that are named by their numbers."""

_MEMBER = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)
ROW_FILE = re.compile(r"\w+-\d+-\d+(?:-\d+)?\.safetensors", re.ASCII)
_NO_FILE = (errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR)
"""Errors of the system for a link, a folder, a pipe, a device or a socket."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size and SHA-256 of a file."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files of a checkpoint.

    Attributes:
        files: those in its directory, by name.
        rows: by part those that hold the rows of a buffer, in order; the checkpoints of a run share them.
        serial: how many checkpoints its run had saved before it; the newest has the highest.
        step: what the run called it by.
        score: how good the run was then.
    """

    files: dict[str, FileEntry]
    rows: dict[str, dict[str, FileEntry]] = field(default_factory=dict)
    serial: int = 0
    step: int | None = None
    score: float | None = None

    @property
    def shared(self) -> dict[str, FileEntry]:
        """The files of rows of all parts."""
        return {name: entry for entries in self.rows.values() for name, entry in entries.items()}

    def write(self, directory: Path) -> None:
        """Write it into the directory, flushed to disk."""
        plain = {"rltrainer": "checkpoint", "version": FORMAT_VERSION, **asdict(self)}
        with open(directory / MANIFEST, "x") as stream:
            stream.write(json.dumps(plain | {"checksum": _checksum(plain)}, indent=1))
            stream.flush()
            os.fsync(stream.fileno())


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        CheckpointError: there is none, or it is damaged, foreign or of another format.
        OSError: it could not be read.
    """
    file = directory / MANIFEST
    try:
        with open_member(file) as stream:
            text = read_text(stream)
    except CheckpointError:
        what = f"there is no such checkpoint{neighbours_hint(directory)}"
        what = "is no checkpoint: it has no manifest" if directory.is_dir() else what
        raise CheckpointError(f"{directory}: {what}") from None
    try:
        plain = read_json(text, allows_nan=True)
        is_ours, version = plain["rltrainer"] == "checkpoint", plain["version"]
        is_ours = is_ours and type(version) is int and version > 0
        manifest = _from_plain(plain) if is_ours and version == FORMAT_VERSION else None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{file}: damaged ({type(error).__name__}: {error})") from error
    if is_ours:
        refuse_version(file, version, FORMAT_VERSION, CheckpointError)
    if manifest is None:
        raise CheckpointError(f"{file}: not a manifest of rltrainer")
    return manifest


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


def _from_plain(plain: dict[str, Any]) -> Manifest | None:
    """Return a manifest; None if it is not one that rltrainer writes."""
    if plain.pop("checksum") != _checksum(plain):
        raise ValueError("its contents changed after it was written (SHA-256 differs)")
    files, rows = _entries(plain["files"], _MEMBER), {}
    serial, step, score = plain["serial"], plain["step"], plain["score"]
    for part, entries in plain["rows"].items():
        rows[part] = _entries(entries, ROW_FILE)
    is_sound = all(type(number) is int and 0 <= number < 2**62 for number in (serial, 0 if step is None else step))
    is_sound = is_sound and (score is None or (isinstance(score, float) and not math.isnan(score)))
    if files is None or not is_sound or not all(f"{part}.safetensors" in files for part in rows):
        return None
    found = {part: entries for part, entries in rows.items() if entries is not None}
    if len(found) < len(rows):
        return None
    return Manifest(files=files, rows=found, serial=serial, step=step, score=score)


def _checksum(plain: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest: serial, step and score say which checkpoint is the newest, and the best."""
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def _entries(plain: dict[str, Any], name: re.Pattern[str]) -> dict[str, FileEntry] | None:
    """Return sizes and checksums by name; None if a name is not one of ours."""
    if not all(name.fullmatch(each) and _is_entry(entry) for each, entry in plain.items()):
        return None
    return {each: FileEntry(entry["size"], entry["sha256"]) for each, entry in plain.items()}


def _is_entry(entry: Any) -> bool:
    return type(entry["size"]) is int and isinstance(entry["sha256"], str)
