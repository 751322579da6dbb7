"""The checkpoints of a run: committed one after another into one directory, and the newest whole one found again.

    checkpoint-000000020000/   manifest.json, one state file per part; complete, or not there
    segments/<sha256>          blocks of large buffers, which those that hold the same blocks share
    lock                       who writes here

`save` copies what may change and holds the blocks that did; a thread writes both under hidden names, renames the
directory into place, and then removes checkpoints that are not to be kept, and segments that nobody lists any more.
"""

import contextlib
import logging
import math
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rltrainer.atomic_write import hidden_name, make_folder, remove, sync_directory, write_errors
from rltrainer.checkpoint.directory import write_parts
from rltrainer.checkpoint.directory_lock import DirectoryLock
from rltrainer.checkpoint.manifest import FORMAT_VERSION, MANIFEST, Blocks, Manifest
from rltrainer.checkpoint.run_directory import checkpoints_in, free_path, leftovers_in, newest_intact
from rltrainer.checkpoint.segments import SegmentFolder
from rltrainer.errors import CheckpointError
from rltrainer.state_file import pack_state
from rltrainer.types import State


@runtime_checkable
class SavedBlocks(Protocol):
    """A value in a state that is too large to be copied when it is saved; made for one save.

    From `hold` on, `take` returns what a block held when `hold` was called, whatever is written meanwhile.
    """

    @property
    def mark(self) -> object:
        """Stands for the contents at this moment: what a later save asks `changed_since` about."""

    def __len__(self) -> int:
        """Return how many blocks there are."""

    def changed_since(self, mark: object | None) -> list[int]:
        """Return the blocks that may differ from those at a mark, in the order in which they are better taken.

        Args:
            mark: of an earlier save; None returns all of them.
        """

    def hold(self, blocks: Sequence[int]) -> None:
        """Keep what these blocks hold now, for `take`; called by who writes the contents, between two writes."""

    def take(self, block: int) -> State:
        """Return the contents of a block that is held, once; called by any thread."""

    def release(self) -> None:
        """Hold nothing any more; called by any thread."""


@dataclass(frozen=True)
class InSegments:
    """Blocks that were saved: their mark then, and the segments that hold them."""

    mark: object
    names: list[str]


Saved = dict[tuple[str, str], InSegments]
"""By part and key in its state."""


@dataclass
class Unsaved:
    """Blocks of a value, and the segments that hold them; None for those that are to be written."""

    value: SavedBlocks
    names: list[str | None]
    changed: list[int]


class Capture:
    """The state of a run at one moment.

    Args:
        parts: the state of each part; `SavedBlocks` may be among its values.
        saved: what the save before wrote.
        present: the segments that are there.

    Raises:
        TypeError: something in a state cannot be saved; the text names it.
    """

    def __init__(self, parts: Mapping[str, State], saved: Saved, present: Collection[str]) -> None:
        self.blocks = {
            (part, key): _compare(value, saved.get((part, key)), present)
            for part, state in parts.items()
            for key, value in state.items()
            if isinstance(value, SavedBlocks)
        }
        plain = {
            part: {key: value for key, value in state.items() if (part, key) not in self.blocks}
            for part, state in parts.items()
        }
        self.parts = {part: pack_state(part, state).copied() for part, state in plain.items()}
        try:
            for blocks in self.blocks.values():
                blocks.value.hold(blocks.changed)
        except BaseException:
            self.release()
            raise

    def saved(self) -> Saved:
        """Return what is saved, once all blocks are written."""
        return {at: InSegments(each.value.mark, [*filter(None, each.names)]) for at, each in self.blocks.items()}

    def segments(self) -> Blocks:
        """Return the segments by part and key, once all blocks are written."""
        found: Blocks = {}
        for (part, key), each in self.saved().items():
            found.setdefault(part, {})[key] = each.names
        return found

    def release(self) -> None:
        """Let go of what is not written."""
        for blocks in self.blocks.values():
            blocks.value.release()


def _compare(value: SavedBlocks, before: InSegments | None, present: Collection[str]) -> Unsaved:
    """Find the blocks that are to be written: those that changed, and those whose segments are gone."""
    changed = value.changed_since(None if before is None else before.mark)
    known = [] if before is None else before.names[: len(value)]  # there are fewer after the data was cleared
    names = [name if name in present else None for name in known] + [None] * (len(value) - len(known))
    for block in changed:
        names[block] = None
    gone = [block for block, name in enumerate(names) if name is None and block not in set(changed)]
    return Unsaved(value, names, changed + gone)


class CheckpointStore:
    """Writes the checkpoints of a run into `directory/checkpoint-<step>`.

    Args:
        directory: where they lie; made if it is not there.
        keep_last: how many of the newest stay; None keeps all.
        keep_best: how many of those with the highest scores stay too; None keeps all that have one.
    """

    def __init__(self, directory: str | os.PathLike[str], keep_last: int | None, keep_best: int | None) -> None:
        self.directory = Path(os.path.abspath(directory))
        self.keep_last, self.keep_best = keep_last, keep_best
        self._lock = DirectoryLock(self.directory)
        self._segments = SegmentFolder(self.directory)
        self._committed: dict[Path, Manifest] = {}  # the oldest first
        self._saved: Saved = {}
        self._writer: threading.Thread | None = None
        self._failure: CheckpointError | None = None

    def open(self) -> None:
        """Take the lock of the directory, and remove what killed saves left behind.

        Raises:
            CheckpointError: another process writes there, which the text names; or nothing can be written.
        """
        if self._lock.is_held:
            return
        if os.path.lexists(self.directory / MANIFEST):
            text = f"{self.directory}: is a checkpoint, and cannot hold those of a run. Give the directory around it."
            raise CheckpointError(text)
        with write_errors(self.directory, CheckpointError):
            make_folder(self._segments.path)
            self._lock.acquire()
            try:
                self._look_around()
            except BaseException:
                self._lock.release()
                raise

    def close(self) -> None:
        """Wait for what is being written, and give the lock back.

        Raises:
            CheckpointError: the last save failed.
        """
        self.wait()
        self._lock.release()
        self.check()

    def save(self, parts: dict[str, State], step: int, score: float | None) -> None:
        """Save a checkpoint; returns when all that may change is safe, the rest is written by a thread.

        Waits for the save before.

        Args:
            parts: the state of each part; see `live_state`.
            step: what the checkpoint is called by.
            score: what `keep_best` goes by; None and NaN are never best.

        Raises:
            CheckpointError: the save before failed, or this one cannot begin.
            TypeError: something in a state cannot be saved; the text names it.
        """
        if not self._lock.is_held:
            raise CheckpointError(f"{self.directory}: is not open for writing. Call open() first.")
        self.wait()
        self.check()
        with write_errors(self.directory, CheckpointError):
            capture = Capture(parts, self._saved, self._segments.names())
        self._writer = threading.Thread(target=self._write, args=(capture, step, score), name="rltrainer-checkpoint")
        try:
            self._writer.start()
        except RuntimeError:  # the system has no thread for us: training waits
            self._writer = None
            self._write(capture, step, score)

    def check(self) -> None:
        """Raise the failure of what was written in the background, once.

        Raises:
            CheckpointError: the last save failed.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def wait(self) -> None:
        """Wait until all is written; a failure is raised by the next `check`, `save` or `close`."""
        if self._writer is not None:
            with contextlib.suppress(RuntimeError):  # an interrupt came before it was started
                self._writer.join()
            self._writer = None

    def newest_intact(self) -> Path | None:
        """Return the newest checkpoint that is whole; None if there are none.

        Each that is damaged and newer, or whose manifest cannot be read, is named in a `RuntimeWarning`.

        Raises:
            CheckpointError: there are checkpoints, and all are damaged.
        """
        return newest_intact(self.directory)

    def _look_around(self) -> None:
        """Take over what is there: the checkpoints, and none of what killed saves left."""
        for path in leftovers_in(self.directory):
            remove(path)
        found = checkpoints_in(self.directory)
        self._committed = {each.path: each.manifest for each in reversed(found) if each.manifest is not None}
        if len(self._committed) == len(found):  # what a damaged manifest lists, nobody knows
            self._segments.remove(self._segments.names() - self._listed())

    def _write(self, capture: Capture, step: int, score: float | None) -> None:
        """Write a checkpoint, in a thread; failures are kept for who asks."""
        try:
            self._commit(capture, step, score)
            self._saved = capture.saved()
        except BaseException as cause:
            newest = next(reversed(self._committed), None)
            rest = "There is none before it." if newest is None else f"The newest one is {newest}."
            text = cause if isinstance(cause, CheckpointError) else f"{type(cause).__name__}: {cause}"
            failure = CheckpointError(f"{self.directory}: step {step} could not be saved ({text}). {rest}")
            failure.__cause__ = cause
            self._failure = failure
        else:
            self._prune()
        finally:
            capture.release()

    def _commit(self, capture: Capture, step: int, score: float | None) -> None:
        self._lock.check()
        path = free_path(self.directory, step)
        temporary = hidden_name(path, "new")
        written: set[str] = set()
        try:
            for blocks in capture.blocks.values():
                for block in blocks.changed:
                    blocks.names[block] = name = self._segments.write(blocks.value.take(block))
                    written.add(name)
            self._segments.sync()
            manifest = self._manifest(capture, step, score)
            manifest = write_parts(temporary, capture.parts, manifest)
            os.replace(temporary, path)
            self._committed[path] = manifest
            sync_directory(self.directory)
        finally:
            remove(temporary)
            self._segments.remove(written - self._listed())

    def _manifest(self, capture: Capture, step: int, score: float | None) -> Manifest:
        """Return the manifest of a checkpoint whose segments are written."""
        blocks = capture.segments()
        names = {name for keys in blocks.values() for names in keys.values() for name in names}
        serial = 1 + max((manifest.serial for manifest in self._committed.values()), default=0)
        score = None if score is None or math.isnan(score) else float(score)
        entries = self._segments.entries(sorted(names))
        return Manifest(
            files={}, segments=entries, blocks=blocks, serial=serial, step=step, score=score, version=FORMAT_VERSION
        )

    def _prune(self) -> None:
        """Remove checkpoints that are not to be kept: first their names, so that what a kill leaves is none."""
        stay = kept(self._committed.items(), self.keep_last, self.keep_best)
        gone = [path for path in self._committed if path not in stay]
        names: set[str] = set()
        try:
            for path in gone:
                hidden = hidden_name(path, "gone")
                with contextlib.suppress(FileNotFoundError):  # somebody else removed it
                    os.replace(path, hidden)
                names |= set(self._committed.pop(path).segments)
                remove(hidden)
            self._segments.remove(names - self._listed())
        except OSError as error:
            logging.getLogger("rltrainer").warning("%s: could not remove old checkpoints (%s)", self.directory, error)

    def _listed(self) -> set[str]:
        """Return the segments that a checkpoint lists."""
        return {name for manifest in self._committed.values() for name in manifest.segments}


def live_state(part: Any) -> State:
    """Return the state of a part for `CheckpointStore.save`: a buffer's rows are not copied, but saved in blocks."""
    state: Any = part.state_in_blocks() if hasattr(part, "state_in_blocks") else part.state_dict()
    return dict(state)


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
