"""A readable report of a checkpoint: its contents, and whether they are complete."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rltrainer.checkpoint.directory import ROWS, check_checkpoint, read_states
from rltrainer.checkpoint.manifest import FORMAT_VERSION, MANIFEST, Manifest, read_manifest
from rltrainer.checkpoint.run_directory import checkpoints_in
from rltrainer.errors import CheckpointError, escaped


@dataclass(frozen=True)
class PartReport:
    """One part of a checkpoint.

    Attributes:
        name: of the part, such as `algorithm`.
        nbytes: of its own file.
        tensors: dtype and shape by the path in its state; those in files of rows aside.
        num_row_files, rows_nbytes: the files that hold its rows beside the checkpoint, and their bytes.
    """

    name: str
    nbytes: int
    tensors: dict[str, str]
    num_row_files: int
    rows_nbytes: int

    def __str__(self) -> str:
        shared = f", {self.num_row_files} files of rows of {_size(self.rows_nbytes)}" if self.num_row_files else ""
        lines = [f"  {self.name}: {_size(self.nbytes)}, {len(self.tensors)} tensors{shared}"]
        return "\n".join(lines + [f"    {name}: {text}" for name, text in self.tensors.items()])


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint.

    Attributes:
        path: its directory.
        problem: why it cannot be restored; None if it is whole.
        manifest: its manifest; None if that cannot be read.
        parts: what is in it, if it is whole.
    """

    path: Path
    problem: str | None
    manifest: Manifest | None
    parts: list[PartReport] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Tell whether the checkpoint holds all that was written, unchanged."""
        return self.problem is None

    def __str__(self) -> str:
        lines = [f"{self.path}: {'whole' if self.problem is None else f'DAMAGED. {self.problem}'}"]
        if self.manifest is not None:
            known = {"step": self.manifest.step, "score": self.manifest.score}
            facts = [f"{name} {value}" for name, value in known.items() if value is not None]
            lines.append(f"  {', '.join([f'format {FORMAT_VERSION}', *facts])}")
        return "\n".join([*lines, *map(str, self.parts)])


@dataclass(frozen=True)
class Report:
    """One checkpoint, or all of a run, the newest first."""

    checkpoints: list[CheckpointReport]

    @property
    def is_whole(self) -> bool:
        """Tell whether all of them are whole."""
        return all(checkpoint.is_whole for checkpoint in self.checkpoints)

    def __str__(self) -> str:
        lines = [str(checkpoint) for checkpoint in self.checkpoints]
        if len(self.checkpoints) > 1:
            num_damaged = sum(not checkpoint.is_whole for checkpoint in self.checkpoints)
            lines.append(f"{len(self.checkpoints)} checkpoints, {num_damaged or 'none'} damaged")
        return "\n".join(lines)


def verify(path: str | os.PathLike[str]) -> Report:
    """Look at a checkpoint, or at all in the directory of a run; nothing is changed.

    Raises:
        CheckpointError: there is none.
    """
    directory = Path(os.path.abspath(path))
    try:
        paths = [directory]
        if directory.is_dir() and not os.path.lexists(directory / MANIFEST):
            paths = [found.path for found in checkpoints_in(directory)] or paths
    except OSError as error:
        raise CheckpointError(f"{directory}: could not be read ({error})") from error
    if not any(os.path.lexists(each / MANIFEST) for each in paths) and paths == [directory]:
        read_manifest(directory)  # which says what is missing
    return Report([_report(each) for each in paths])


def _report(path: Path) -> CheckpointReport:
    manifest = None
    try:
        manifest = read_manifest(path)
        check_checkpoint(path)
        states = read_states(path, manifest, mapped=[Path(name).stem for name in manifest.files])
    except (CheckpointError, OSError) as error:
        return CheckpointReport(path, str(error), manifest)
    return CheckpointReport(path, None, manifest, [_part(name, states[name], manifest) for name in sorted(states)])


def _part(name: str, state: dict[str, Any], manifest: Manifest) -> PartReport:
    entries = manifest.rows.get(name, {})
    own = state | {ROWS: state[ROWS][len(entries) :]} if entries else state
    nbytes = sum(entry.size for entry in entries.values())
    return PartReport(name, manifest.files[f"{name}.safetensors"].size, dict(_tensors(own, "")), len(entries), nbytes)


def _tensors(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Tensor):
        yield name, f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        key = escaped(str(key))
        yield from _tensors(item, f"{name}.{key}" if name else key)


def _size(nbytes: int) -> str:
    return f"{nbytes:,} bytes" if nbytes < 10_000 else f"{nbytes / 1e6:,.2f} MB"
