"""The checkpoints of a run: saved one after another into one folder, and the newest intact one found again."""

#     checkpoint-000000020000/                           manifest.json, a state file per part; complete, or not there
#     rows/buffer-000000000000-000000019990.safetensors  rows of the buffer by their numbers; checkpoints share them
#     lock                                               the process that writes here
#
# `save` writes the rows that are new, then the parts under a hidden name, and renames that into place. Then it removes
# the checkpoints that `keep_last` and `keep_best` let go, and the rows that no checkpoint lists any more. If there are
# several ranks, each writes its parts and rows; all else is the first one's, and an error of one is raised on all.

import contextlib
import logging
import math
import os
import re
import warnings
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rltrainer.checkpoint.checkpoint_params import CheckpointParams
from rltrainer.checkpoint.folder import (
    MANIFEST,
    ROW_FILE,
    ROWS,
    Checkpoint,
    FileEntry,
    KnownFiles,
    Manifest,
    absolute_path,
    on_first,
    open_checkpoint,
    reading,
    write_manifest,
    write_member,
    write_parts,
)
from rltrainer.checkpoint.folder_lock import FolderLock
from rltrainer.data.buffer_state import RowFile, RowLog
from rltrainer.data.storage import Array
from rltrainer.errors import CheckpointError
from rltrainer.files.atomic_write import hidden_name, make_folder, remove, sync_folder, write_errors
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.state.state_file import PackedState, pack_state
from rltrainer.types import State

_NAME = re.compile(r"checkpoint-(\d{1,18})(?:-\d+)?", re.ASCII)
_LEFTOVER = re.compile(r"\.checkpoint-\d+(?:-\d+)?\..*\.(?:new|gone)", re.ASCII)


@dataclass(frozen=True)
class Found:
    """A checkpoint by its name: the manifest, or the problem with it."""

    path: Path
    step: int
    manifest: Manifest | None
    problem: str = ""


class CheckpointStore:
    """Writes the checkpoints of a run into `folder/checkpoint-<step>`.

    Args:
        folder: made if it is not there.
        keep_last: number of the newest that stay; None keeps all.
        keep_best: number of checkpoints with the highest scores that stay too; None keeps all with a score.
        ranks: of the run, each with a store; all make the same calls.
        known: what this rank has read already.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep_last: int | None,
        keep_best: int | None,
        ranks: Ranks = ALONE,
        known: KnownFiles | None = None,
    ) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.keep_last, self.keep_best, self._ranks = keep_last, keep_best, ranks
        self._known = known or KnownFiles()
        self._lock = FolderLock(self.folder)
        self._rows = self.folder / ROWS
        self._committed: dict[Path, Manifest] = {}  # the oldest first
        self._spared: set[str] = set()  # files of rows that a checkpoint with a damaged manifest may list

    def open(self) -> None:
        """Take the lock of the folder, and remove what killed saves left behind.

        Raises:
            CheckpointError: nothing can be written, or another process writes there; the text names it.
        """
        on_first(self._ranks, self._open)

    def _open(self) -> None:
        if self._lock.is_held:
            return
        if os.path.lexists(self.folder / MANIFEST):
            hint = "Give the folder around it."
            raise CheckpointError(f"{self.folder}: is a checkpoint, and cannot hold those of a run. {hint}")
        with write_errors(self.folder, CheckpointError):
            make_folder(self._rows)
            self._lock.acquire()
            try:
                found = checkpoints_in(self.folder, self._known)
                # A damaged manifest may list any row file: today's stay until the user removes that checkpoint.
                self._committed = {each.path: each.manifest for each in reversed(found) if each.manifest is not None}
                is_known = len(self._committed) == len(found)
                self._spared = set() if is_known else set(os.listdir(self._rows)) - self._listed()
                self._clean()
            except BaseException:
                self._lock.release()
                raise

    def close(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def save(self, parts: dict[str, State], step: int, score: float | None) -> None:
        """Save a checkpoint.

        Args:
            parts: the state of each part; see `live_state`.
            step: the number in the checkpoint's name.
            score: for `keep_best`; None and NaN are never best.

        Raises:
            CheckpointError: it could not be saved; the text names the cause, and the newest that there is.
            TypeError: something in a state cannot be saved; the text names it.
        """
        rank, packed = self._ranks.rank, dict[str, PackedState]()
        names = {part: f"shard{rank}_{part}" if rank else part for part in parts}
        logs = {names[part]: state[ROWS] for part, state in parts.items() if isinstance(state.get(ROWS), RowLog)}

        def pack() -> None:
            if self._ranks.once(lambda: not self._lock.is_held):
                raise CheckpointError(f"{self.folder}: is not open for writing. Call open() first.")
            tails = {name: {ROWS: [log.tail()]} for name, log in logs.items()}
            packed.update({name: pack_state(part, parts[part] | tails.get(name, {})) for part, name in names.items()})

        self._ranks.attempt(pack, CheckpointError)
        failures = Exception if self._ranks.world == 1 else CheckpointError  # others say that a rank is lost
        try:
            self._commit(packed, logs, step, score)
        except failures as cause:
            newest = self._ranks.from_first(str(next(reversed(self._committed), "")))
            rest = f"The newest one is {newest}." if newest else "There is none before it."
            text = cause if isinstance(cause, CheckpointError) else f"{type(cause).__name__}: {cause}"
            raise CheckpointError(f"{self.folder}: step {step} could not be saved ({text}). {rest}") from cause
        finally:
            with contextlib.suppress(OSError):
                self._ranks.once(self._clean)

    def open_newest(self) -> Checkpoint | None:
        """Open the newest intact checkpoint; None if there are none.

        A `RuntimeWarning` names each newer one that is damaged, and each one without a readable manifest.

        Raises:
            CheckpointError: there are checkpoints, and all are damaged.
        """

        def found() -> list[tuple[str, str]]:
            with reading(self.folder):
                return [(str(each.path), each.problem) for each in checkpoints_in(self.folder, self._known)]

        problems = []
        for path, problem in on_first(self._ranks, found):
            try:
                if problem:
                    raise CheckpointError(problem)
                return open_checkpoint(path, self._ranks, self._known)
            except CheckpointError as error:
                problems.append(str(error))
                text = f"a checkpoint is damaged and passed over: {error}"
                on_first(self._ranks, partial(warnings.warn, text, RuntimeWarning, stacklevel=4))
        if problems:
            text = f"{self.folder}: all {len(problems)} checkpoints are damaged; the newest: {problems[0]}"
            raise CheckpointError(f"{text}. Give another path, or move them away to start a new run.")
        return None

    def _commit(self, parts: dict[str, PackedState], logs: dict[str, RowLog], step: int, score: float | None) -> None:
        score = None if score is None or math.isnan(score) else float(score)
        files: dict[str, dict[RowFile, Array]] = {}

        def begin() -> tuple[str, str]:
            self._lock.check()
            path = _free_path(self.folder, f"checkpoint-{step:012d}")
            temporary = hidden_name(path, "new")
            temporary.mkdir()
            return str(path), str(temporary)

        def write() -> State:
            # Rows, their names, then the manifest: it never lists a file that a power loss took.
            files.update({part: self._append(part, log) for part, log in logs.items()})
            sync_folder(self._rows)
            rows = {part: {file.name: FileEntry(file.size, file.sha256) for file in files[part]} for part in files}
            return asdict(Manifest(files=write_parts(temporary, parts), rows=rows))

        def rename() -> None:
            serial = 1 + max((manifest.serial for manifest in self._committed.values()), default=0)
            try:
                manifest = write_manifest(temporary, shards, serial=serial, step=step, score=score)
                # Noted before the rename: an interrupt between the two would let `_clean` take the rows away.
                self._committed[path] = manifest
                # The commit: before this line there is no checkpoint, after it there is a complete one.
                os.replace(temporary, path)
            finally:
                if not os.path.lexists(path):
                    self._committed.pop(path, None)

        path, temporary = map(Path, on_first(self._ranks, begin))
        shards = self._ranks.attempt(write, CheckpointError)
        on_first(self._ranks, rename)
        for part, log in logs.items():
            log.saved(files[part])
        on_first(self._ranks, self._prune)

    def _append(self, part: str, log: RowLog) -> dict[RowFile, Array]:
        """Write the rows that are new; return the files with all of a buffer's rows but the newest."""
        # A buffer that was loaded here knows the files that hold its rows; they are listed again, not written again.
        files = log.kept(self._is_whole)
        for rows, start, stop in log.new(files):
            path = _free_path(self._rows, f"{part}-{int(start.sum()):012d}-{int(stop.sum()):012d}", ".safetensors")
            entry = write_member(path, pack_state(ROWS, rows))
            self._known.written(path, entry)
            files[RowFile(path.name, entry.size, entry.sha256)] = stop
        return files

    def _is_whole(self, file: RowFile) -> bool:
        """Return whether a file of rows is here as it was written; it is compared again only if it has changed."""
        with contextlib.suppress(CheckpointError, OSError):
            self._known.check(self._rows / file.name, FileEntry(file.size, file.sha256))
            return True
        return False

    def _prune(self) -> None:
        """Flush the names, and remove the checkpoints that do not stay: their names here, their files in `_clean`."""
        sync_folder(self.folder)
        stay = kept(self._committed.items(), self.keep_last, self.keep_best)
        try:
            # A removal file by file would leave a damaged checkpoint behind if it were killed half-way.
            for path in [path for path in self._committed if path not in stay]:
                with contextlib.suppress(FileNotFoundError):  # the user removed it
                    os.replace(path, hidden_name(path, "gone"))
                del self._committed[path]
        except OSError as error:
            logging.getLogger("rltrainer").warning("%s: could not remove old checkpoints (%s)", self.folder, error)

    def _clean(self) -> None:
        """Remove half a checkpoint, removed ones, and the files of rows that no checkpoint lists."""
        listed = self._listed()
        for name in filter(_LEFTOVER.fullmatch, os.listdir(self.folder)):
            remove(self.folder / name)
        for name in set(os.listdir(self._rows)) - listed - self._spared:
            if ROW_FILE.fullmatch(name):
                self._known.removed(self._rows / name)
                remove(self._rows / name)

    def _listed(self) -> set[str]:
        """Return the files of rows that checkpoints list."""
        return {name for manifest in self._committed.values() for name in manifest.row_files}


def checkpoints_in(folder: Path, known: KnownFiles | None = None) -> list[Found]:
    """Return the checkpoints of a run, the newest first; any without a readable manifest come before all others."""
    found, known = [], known or KnownFiles()
    for match in filter(None, map(_NAME.fullmatch, os.listdir(folder) if folder.is_dir() else [])):
        path, manifest, problem = folder / match[0], None, ""
        # A link stands for the checkpoint that it leads to; removing it leaves that alone.
        if path.is_dir():
            try:
                manifest = known.manifest(path)
            except CheckpointError as error:
                problem = str(error)
        else:
            problem = f"{path}: {'is a link that leads to no folder' if path.is_symlink() else 'is no folder'}"
        found.append(Found(path, int(match[1]), manifest, problem))
    return sorted(found, key=lambda it: (True, -it.manifest.serial, -it.step) if it.manifest else (False, 0, -it.step))


def num_shards_to_resume(params: CheckpointParams, known: KnownFiles) -> int | None:
    """Return the number of shards of the checkpoint to continue; None if there is none with a readable manifest.

    Raises:
        CheckpointError: there is no such checkpoint, if the params name one, or its manifest is damaged.
    """
    if params.resume == "never":
        return None
    if params.resume != "auto":
        return known.manifest(absolute_path(params.resume)).num_shards
    with contextlib.suppress(OSError):  # `open_newest` raises it
        found = checkpoints_in(Path(os.path.abspath(params.folder)), known)
        return next((each.manifest.num_shards for each in found if each.manifest), None)
    return None


def live_state(part: Any) -> State:
    """Return the state of a part for `CheckpointStore.save`, which writes only the new rows of a buffer."""
    return dict(part.logged_state() if hasattr(part, "logged_state") else part.state_dict())


def kept(saved: Collection[tuple[Path, Manifest]], keep_last: int | None, keep_best: int | None) -> set[Path]:
    """Return the checkpoints that stay: the newest, and the ones with the highest scores, of equal ones the oldest."""
    newest = sorted(saved, key=lambda each: -each[1].serial)[:keep_last]
    scored = [(manifest.score, -manifest.serial, path) for path, manifest in saved if manifest.score is not None]
    return {path for path, _ in newest} | {path for *_, path in sorted(scored, reverse=True)[:keep_best]}


def _free_path(folder: Path, stem: str, suffix: str = "") -> Path:
    """Return a path that is not taken: another branch of the run may have saved the same step, or the same rows."""
    path, number = folder / f"{stem}{suffix}", 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{stem}-{number}{suffix}"
    return path
