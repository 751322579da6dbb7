"""A readable report of checkpoints: their contents, and whether they are complete."""

import os
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from rltrainer.checkpoint.folder import FORMAT_VERSION, MANIFEST, KnownFiles, open_checkpoint, read_manifest, reading
from rltrainer.checkpoint.store import checkpoints_in
from rltrainer.errors import CheckpointError, escaped
from rltrainer.state.state_file import CHECKSUM


@dataclass(frozen=True)
class Report:
    """One checkpoint, or all of a run, the newest first; prints as a text."""

    problems: dict[Path, str]
    """Why a checkpoint cannot be restored, by its folder; "" if it is complete and unchanged."""
    text: str

    @property
    def is_whole(self) -> bool:
        """True if all of them are complete and unchanged."""
        return not any(self.problems.values())

    def __str__(self) -> str:
        return self.text


def verify(path: str | os.PathLike[str]) -> Report:
    """Check a checkpoint, or all in the folder of a run; nothing is changed.

    Raises:
        CheckpointError: there is none.
    """
    folder, known = Path(os.path.abspath(path)), KnownFiles()
    with reading(folder):
        is_one = os.path.lexists(folder / MANIFEST)
        paths = [folder] if is_one else [each.path for each in checkpoints_in(folder, known)]
        if not paths:
            read_manifest(folder)  # raises what is missing
    problems, lines = {}, []
    for each in paths:
        problems[each], text = _report(each, known)
        lines += text
    if len(paths) > 1:
        lines.append(f"{len(paths)} checkpoints, {sum(map(bool, problems.values())) or 'none'} damaged")
    return Report(problems, "\n".join(lines))


def _report(path: Path, known: KnownFiles) -> tuple[str, list[str]]:
    """Return the problem of a checkpoint, and the lines about it."""
    problem, manifest, parts = "", None, []
    try:
        manifest = known.manifest(path)
        open_checkpoint(path, known=known)
        for part, name in sorted(manifest.parts(0).items()):  # the other shards are alike
            tensors, rows = _tensors(path / name), manifest.rows.get(part, {}).values()
            shared = f", {len(rows)} files of rows of {_size(sum(entry.size for entry in rows))}" if rows else ""
            parts += [f"  {part}: {_size(manifest.files[name].size)}, {len(tensors)} tensors{shared}", *tensors]
    except (CheckpointError, OSError) as error:
        problem, parts = str(error), []
    lines = [f"{path}: {f'DAMAGED. {problem}' if problem else 'whole'}"]
    if manifest is not None:
        named = {"shards": manifest.num_shards, "step": manifest.step, "score": manifest.score}
        facts = [f"{key} {it}" for key, it in named.items() if it is not None and (key, it) != ("shards", 1)]
        lines.append(f"  {', '.join([f'format {FORMAT_VERSION}', *facts])}")
    return problem, lines + parts


def _tensors(file: Path) -> list[str]:
    """Return a line about each tensor of a part: its name, dtype and shape."""
    with safe_open(str(file), framework="pt") as opened:
        pieces = {name: opened.get_slice(name) for name in opened.keys() if name != CHECKSUM}  # noqa: SIM118  # no dict
        names = {name: escaped(name.removeprefix(f"{file.stem}.")) for name in pieces}
        return [f"    {names[name]}: {piece.get_dtype()} {piece.get_shape()}" for name, piece in pieces.items()]


def _size(nbytes: int) -> str:
    return f"{nbytes:,} bytes" if nbytes < 10_000 else f"{nbytes / 1e6:,.2f} MB"
