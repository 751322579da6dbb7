"""The manifest of a checkpoint: the files that belong to it, with the size and SHA-256 of each. Data from anywhere."""

import hashlib
import json
import math
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rltrainer.checkpoint.members import FileEntry, open_member
from rltrainer.errors import CheckpointError
from rltrainer.json_text import read_json
from rltrainer.regular_file import neighbours_hint, read_text

MANIFEST = "manifest.json"
FORMAT_VERSION = 2
"""2: checkpoints of a run, which share segments. One that stands alone is written as 1, and 1 is still read."""

_MEMBER = re.compile(r"\w[\w.-]*\.safetensors", re.ASCII)
_SEGMENT = re.compile(r"[0-9a-f]{64}\.safetensors")

Blocks = dict[str, dict[str, list[str]]]
"""By part, and by key in its state, the segments that hold its blocks, in order."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files of a checkpoint.

    Attributes:
        files: those in its directory, by name.
        segments: those that it shares with other checkpoints of its run.
        blocks: what the segments hold.
        serial: how many checkpoints its run had saved before it; the newest has the highest.
        step: what the run called it by.
        score: how good the run was then.
        version: the format; the lowest that can say all this.
    """

    files: dict[str, FileEntry]
    segments: dict[str, FileEntry] = field(default_factory=dict)
    blocks: Blocks = field(default_factory=dict)
    serial: int = 0
    step: int | None = None
    score: float | None = None
    version: int = 1

    def to_json(self) -> str:
        """Return the text of the file."""
        plain = {"rltrainer": "checkpoint", **asdict(self)}
        if self.version == 1:
            plain = {name: plain[name] for name in ("rltrainer", "version", "files")}
        else:
            plain["checksum"] = _checksum(plain)
        return json.dumps(plain, indent=1)

    def write(self, directory: Path) -> None:
        """Write it into the directory, flushed to disk."""
        with open(directory / MANIFEST, "x") as stream:
            stream.write(self.to_json())
            stream.flush()
            os.fsync(stream.fileno())


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        CheckpointError: there is none, or it is damaged, foreign or newer.
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
        is_ours = is_ours and type(version) is int
        is_newer = is_ours and version > FORMAT_VERSION
        manifest = _from_plain(plain) if is_ours and 1 <= version <= FORMAT_VERSION else None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{file}: damaged ({type(error).__name__}: {error})") from error
    if is_newer:
        hint = f"written in format {version}, this release reads up to {FORMAT_VERSION}. Upgrade it."
        raise CheckpointError(f"{file}: {hint}")
    if manifest is None:
        raise CheckpointError(f"{file}: not a manifest of rltrainer")
    return manifest


def _from_plain(plain: dict[str, Any]) -> Manifest | None:
    """Return a manifest; None if it is not one that rltrainer writes."""
    files = _entries(plain["files"], _MEMBER)
    if files is None or plain["version"] == 1:
        return None if files is None else Manifest(files=files)
    if plain.pop("checksum") != _checksum(plain):
        raise ValueError("its contents changed after it was written (SHA-256 differs)")
    segments, blocks = _entries(plain["segments"], _SEGMENT), plain["blocks"]
    serial, step, score = plain["serial"], plain["step"], plain["score"]
    lists = [names for keys in blocks.values() for names in keys.values()]
    is_sound = all(type(number) is int and 0 <= number < 2**62 for number in (serial, step))
    is_sound = is_sound and (score is None or (isinstance(score, float) and not math.isnan(score)))
    is_sound = is_sound and all(f"{part}.safetensors" in files for part in blocks)
    if segments is None or not is_sound or not all(type(names) is list for names in lists):
        return None
    if not segments.keys() >= {name for names in lists for name in names}:
        return None
    return Manifest(
        files=files, segments=segments, blocks=blocks, serial=serial, step=step, score=score, version=plain["version"]
    )


def _checksum(plain: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest: serial, step and score say which checkpoint is the newest, and the best."""
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _entries(plain: dict[str, Any], name: re.Pattern[str]) -> dict[str, FileEntry] | None:
    """Return sizes and checksums by name; None if a name is not one of ours."""
    if not all(name.fullmatch(each) and _is_entry(entry) for each, entry in plain.items()):
        return None
    return {each: FileEntry(entry["size"], entry["sha256"]) for each, entry in plain.items()}


def _is_entry(entry: Any) -> bool:
    return type(entry["size"]) is int and isinstance(entry["sha256"], str)
