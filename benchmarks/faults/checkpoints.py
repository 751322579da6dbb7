"""Looks at the checkpoints of a run, and damages them, by their documented format alone: no code of the package."""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a run.

    Attributes:
        path: its directory.
        manifest: None if it cannot be read.
        files: all that it is made of, with size and SHA-256.
        damaged: the file that is not what the manifest says; None if all are.
    """

    path: Path
    manifest: dict[str, Any] | None
    files: dict[Path, dict[str, Any]]
    damaged: Path | None

    @property
    def serial(self) -> int:
        return -1 if self.manifest is None else self.manifest["serial"]

    @property
    def step(self) -> int:
        return -1 if self.manifest is None else self.manifest["step"]


def checkpoints_in(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints of a run, the newest first; those without a manifest that can be read before all."""
    found = [_look(folder / name) for name in names_in(folder)]
    return sorted(found, key=lambda each: (each.manifest is not None, -each.serial))


def names_in(folder: Path) -> set[str]:
    """Return the names of the checkpoints, while others may come and go."""
    return {name for name in os.listdir(folder) if name.startswith("checkpoint-")}


def newest_intact(found: list[Checkpoint]) -> Checkpoint | None:
    return next((each for each in found if each.damaged is None), None)


def strangers_in(folder: Path) -> list[str]:
    """Return what is neither a checkpoint nor belongs to the folder: what saves left behind."""
    here = [name for name in os.listdir(folder) if not name.startswith("checkpoint-") and name not in ("rows", "lock")]
    inside = os.listdir(folder / "rows") if (folder / "rows").is_dir() else []
    return here + [f"rows/{name}" for name in inside if name.startswith(".")]


def _look(path: Path) -> Checkpoint:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        checksum = manifest.pop("checksum")
        if hashlib.sha256(json.dumps(manifest).encode()).hexdigest() != checksum:
            return Checkpoint(path, None, {}, path / MANIFEST)
        files = {path / name: entry for name, entry in manifest["files"].items()}
        files |= {
            path.parent / "rows" / name: entry for rows in manifest["rows"].values() for name, entry in rows.items()
        }
    except (OSError, ValueError, TypeError, KeyError):
        return Checkpoint(path, None, {}, path / MANIFEST)
    damaged = [file for file, entry in files.items() if not _is_whole(file, entry)]
    damaged += sorted({path / name for name in os.listdir(path)} - files.keys() - {path / MANIFEST})
    return Checkpoint(path, manifest, files, damaged[0] if damaged else None)


def _is_whole(file: Path, entry: dict[str, Any]) -> bool:
    if not file.is_file() or file.stat().st_size != entry["size"]:
        return False
    return hashlib.sha256(file.read_bytes()).hexdigest() == entry["sha256"]


def _flip(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def _truncate(file: Path, draw: random.Random) -> None:
    os.truncate(file, draw.randrange(file.stat().st_size))


def _swap(file: Path, draw: random.Random) -> None:
    """Put another member in its place."""
    others = [other for other in file.parent.glob("*.safetensors") if other != file]
    if others:
        shutil.copyfile(draw.choice(sorted(others)), file)
    else:
        _truncate(file, draw)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "flipped bit": _flip,
    "truncated member": _truncate,
    "missing member": lambda file, draw: file.unlink(),
    "swapped member": _swap,
    "added file": lambda file, draw: (file.parent / "added.safetensors").write_bytes(file.read_bytes()),
    "emptied manifest": lambda file, draw: os.truncate(file, 0),
    "missing manifest": lambda file, draw: file.unlink(),
}
"""What is done to one file of a checkpoint."""


def damage(kind: str, found: Checkpoint, draw: random.Random) -> dict[Path, bytes]:
    """Damage a checkpoint; return what its files held before."""
    before = {file: file.read_bytes() for file in [*found.files, found.path / MANIFEST]}
    members = [file for file in found.files if "added" not in kind or file.parent == found.path]
    file = found.path / MANIFEST if "manifest" in kind else draw.choice(sorted(members))
    if kind == "flipped bit" and draw.random() < 0.1:
        file = found.path / MANIFEST
    DAMAGES[kind](file, draw)
    return before


def repair(before: dict[Path, bytes]) -> None:
    """Put back what was damaged."""
    for file, content in before.items():
        if file.parent.is_dir():
            file.write_bytes(content)
            (file.parent / "added.safetensors").unlink(missing_ok=True)
