"""The checkpoints of a run: committed one after another into one folder, and the newest whole one found again.

    checkpoint-000000020000/                         manifest.json, one state file per part; complete, or not there
    rows/buffer-000000000000-000000019990.safetensors  rows of the buffer by their numbers, which checkpoints share
    lock                                             who writes here

`save` writes the rows that are new, then the parts under a hidden name, and renames that into place. Then it removes
the checkpoints that are not to be kept, and the rows that no checkpoint lists any more.
"""

import contextlib
import logging
import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rltrainer.checkpoint.directory import ROWS, write_parts
from rltrainer.checkpoint.directory_lock import DirectoryLock
from rltrainer.checkpoint.manifest import MANIFEST, ROW_FILE, FileEntry, Manifest, check_member, write_member
from rltrainer.checkpoint.run_directory import checkpoints_in, free_path, leftovers_in, newest_intact
from rltrainer.data.buffer_state import RowFile, RowLog
from rltrainer.data.storage import Array
from rltrainer.errors import CheckpointError
from rltrainer.files.atomic_write import hidden_name, make_folder, remove, sync_directory, write_errors
from rltrainer.state.state_file import PackedState, pack_state
from rltrainer.types import State


class CheckpointStore:
    """Writes the checkpoints of a run into `folder/checkpoint-<step>`.

    Args:
        folder: where they lie; made if it is not there.
        keep_last: how many of the newest stay; None keeps all.
        keep_best: how many of those with the highest scores stay too; None keeps all that have one.
    """

    def __init__(self, folder: str | os.PathLike[str], keep_last: int | None, keep_best: int | None) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.keep_last, self.keep_best = keep_last, keep_best
        self._lock = DirectoryLock(self.folder)
        self._rows = self.folder / ROWS
        self._whole: dict[str, FileEntry] = {}  # files of rows that this process has written or compared
        self._committed: dict[Path, Manifest] = {}  # the oldest first
        self._spared: set[str] = set()  # files of rows that a checkpoint with a damaged manifest may list

    def open(self) -> None:
        """Take the lock of the folder, and remove what killed saves left behind.

        Raises:
            CheckpointError: another process writes there, which the text names; or nothing can be written.
        """
        if self._lock.is_held:
            return
        if os.path.lexists(self.folder / MANIFEST):
            text = f"{self.folder}: is a checkpoint, and cannot hold those of a run. Give the folder around it."
            raise CheckpointError(text)
        with write_errors(self.folder, CheckpointError):
            make_folder(self._rows)
            self._lock.acquire()
            try:
                found = checkpoints_in(self.folder)
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
            step: what the checkpoint is called by.
            score: what `keep_best` goes by; None and NaN are never best.

        Raises:
            CheckpointError: it could not be saved; the text names the cause, and the newest that there is.
            TypeError: something in a state cannot be saved; the text names it.
        """
        if not self._lock.is_held:
            raise CheckpointError(f"{self.folder}: is not open for writing. Call open() first.")
        logs = {part: state[ROWS] for part, state in parts.items() if isinstance(state.get(ROWS), RowLog)}
        tails = {part: {ROWS: [log.tail()]} for part, log in logs.items()}
        packed = {part: pack_state(part, state | tails.get(part, {})) for part, state in parts.items()}
        try:
            self._commit(packed, logs, step, score)
            self._prune()
        except Exception as cause:
            newest = next(reversed(self._committed), None)
            rest = "There is none before it." if newest is None else f"The newest one is {newest}."
            text = cause if isinstance(cause, CheckpointError) else f"{type(cause).__name__}: {cause}"
            raise CheckpointError(f"{self.folder}: step {step} could not be saved ({text}). {rest}") from cause
        finally:
            with contextlib.suppress(OSError):
                self._clean()

    def newest_intact(self) -> Path | None:
        """Return the newest checkpoint that is whole; None if there are none.

        Each that is damaged and newer, or whose manifest cannot be read, is named in a `RuntimeWarning`.

        Raises:
            CheckpointError: there are checkpoints, and all are damaged.
        """
        return newest_intact(self.folder)

    def _commit(self, parts: dict[str, PackedState], logs: dict[str, RowLog], step: int, score: float | None) -> None:
        self._lock.check()
        path = free_path(self.folder, step)
        temporary = hidden_name(path, "new")
        serial = 1 + max((manifest.serial for manifest in self._committed.values()), default=0)
        score = None if score is None or math.isnan(score) else float(score)
        try:
            files = {part: self._append(part, log) for part, log in logs.items()}
            sync_directory(self._rows)
            rows = {part: {file.name: FileEntry(file.size, file.sha256) for file in files[part]} for part in files}
            manifest = write_parts(
                temporary, parts, Manifest(files={}, rows=rows, serial=serial, step=step, score=score)
            )
            self._committed[path] = manifest  # first: an interrupt after the rename must not take its rows away
            os.replace(temporary, path)
        finally:
            if not os.path.lexists(path):
                self._committed.pop(path, None)
        for part, log in logs.items():
            log.saved(files[part])
        sync_directory(self.folder)

    def _append(self, part: str, log: RowLog) -> dict[RowFile, Array]:
        """Write the rows that are new; return the files that hold all of a buffer's rows but the newest."""
        files = log.kept(self._is_whole)
        for rows, start, stop in log.new(files):
            name = self._free_name(f"{part}-{int(start.sum()):012d}-{int(stop.sum()):012d}")
            self._whole[name] = entry = write_member(self._rows / name, pack_state(ROWS, rows))
            files[RowFile(name, entry.size, entry.sha256)] = stop
        return files

    def _free_name(self, stem: str) -> str:
        """Return a name for a file of rows; another branch of the run may have written rows of the same numbers."""
        name, number = f"{stem}.safetensors", 1
        while os.path.lexists(self._rows / name):
            number += 1
            name = f"{stem}-{number}.safetensors"
        return name

    def _is_whole(self, file: RowFile) -> bool:
        """Return whether a file of rows is here as it was written; it is compared once in a process."""
        entry = FileEntry(file.size, file.sha256)
        if file.name not in self._whole:
            with contextlib.suppress(CheckpointError, OSError):
                check_member(self._rows / file.name, entry)
                self._whole[file.name] = entry
        return self._whole.get(file.name) == entry and os.path.lexists(self._rows / file.name)

    def _prune(self) -> None:
        """Remove checkpoints that are not to be kept: first their names, so that what a kill leaves is none."""
        stay = kept(self._committed.items(), self.keep_last, self.keep_best)
        try:
            for path in [path for path in self._committed if path not in stay]:
                with contextlib.suppress(FileNotFoundError):  # somebody else removed it
                    os.replace(path, hidden_name(path, "gone"))
                del self._committed[path]
        except OSError as error:
            logging.getLogger("rltrainer").warning("%s: could not remove old checkpoints (%s)", self.folder, error)

    def _clean(self) -> None:
        """Remove what nothing lists: half a checkpoint, removed ones, and files of rows."""
        listed = self._listed()
        for path in leftovers_in(self.folder):
            remove(path)
        for name in set(os.listdir(self._rows)) - listed - self._spared:
            if ROW_FILE.fullmatch(name):
                self._whole.pop(name, None)
                remove(self._rows / name)

    def _listed(self) -> set[str]:
        """Return the files of rows that a checkpoint lists."""
        return {name for manifest in self._committed.values() for name in manifest.shared}


def live_state(part: Any) -> State:
    """Return the state of a part for `CheckpointStore.save`, which writes only the new rows of a buffer."""
    return dict(part.logged_state() if hasattr(part, "logged_state") else part.state_dict())


def kept(saved: Collection[tuple[Path, Manifest]], keep_last: int | None, keep_best: int | None) -> set[Path]:
    """Return which checkpoints stay.

    Args:
        saved: all of them.
        keep_last: how many of the newest; None keeps all.
        keep_best: how many of those with the highest scores, of equal ones the oldest; None keeps all with a score.
    """
    newest = sorted(saved, key=lambda each: -each[1].serial)[:keep_last]
    scored = [each for each in saved if each[1].score is not None and not math.isnan(each[1].score)]
    best = sorted(scored, key=lambda each: (-(each[1].score or 0.0), each[1].serial))[:keep_best]
    return {path for path, _ in (*newest, *best)}
