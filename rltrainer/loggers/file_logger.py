"""The parent of loggers that write files: each run has a file or folder of its own, which only grows."""

import logging
import os
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Unpack

from rltrainer.loggers.event_file import EVENT_FILES
from rltrainer.loggers.extent import Extent, ends_with_step
from rltrainer.loggers.logger import Logger, LoggerOptions
from rltrainer.loggers.logger_state import LoggerState
from rltrainer.loggers.progress_row import Progress, read_progress_row
from rltrainer.loggers.run_path import RunPath
from rltrainer.types import Load

Epochs = Iterator[tuple[str, Mapping[str, Any] | str | bytes]]
"""Rows that may be of epochs, oldest first: words for each, and the row, or its JSON."""


class FileLogger(Logger):
    """A logger at a path, or at the same with a number if other runs have used it.

    A run that begins claims its path in one step, so that of processes that start together each has a log of its own.
    Every piece goes to the operating system in one unbuffered write, so that a killed process loses none.

    Args:
        path: the log's file or folder; later that of this run.
        suffix: the end of the path's name that stays behind the number.
        options: intervals and `strict`, as in `Logger`.
    """

    def __init__(self, path: Path, suffix: str, **options: Unpack[LoggerOptions]) -> None:
        super().__init__(**options)
        self.path, self._runs = path, RunPath(path, suffix)
        self._file: FileIO | None = None
        self._lacks_place = False  # as the path could not be claimed: it may be another run's

    def read_progress(self) -> Progress | None:
        """Return what the last `log_epoch` wrote, or None; one that a kill broke off is skipped with a warning.

        Before a run has begun, it is the last of all runs at this path that is read.

        Raises:
            CheckpointError: a row is damaged, or holds what no run goes on from; the text names it.
        """
        path = self.path if self._has_place else self._runs.newest(self._is_log)
        progress = None
        for words, found in self._epochs(path):
            progress = read_progress_row(f"{path}, {words}", found) or progress
        return progress

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @abstractmethod
    def _epochs(self, path: Path) -> Epochs:
        """Yield the epoch rows of the log at this path."""

    @abstractmethod
    def _is_log(self, path: Path) -> bool:
        """Return whether a log of this kind lies at a path."""

    def _is_used(self, path: Path) -> bool:
        """Return whether a run has written to a path, or beside it."""
        return self._is_log(path)

    @abstractmethod
    def _claim(self, path: Path) -> None:
        """Make the log at a path in one step; a `FileExistsError` if another process has."""

    @abstractmethod
    def _drop_after(self, step: int) -> None:
        """Remove or hide, with the next piece, the rows of later steps than this."""

    @abstractmethod
    def _find(self, place: Path, name: str) -> Path | None:
        """Return the file of the log at a place by its name in a checkpoint, which is not trusted."""

    @abstractmethod
    def _open(self) -> FileIO:
        """Open the file that is appended to."""

    @abstractmethod
    def _beginning(self) -> bytes:
        """Return what stands at the beginning of each file."""

    def _append(self, data: bytes) -> None:
        """Write a piece, all or nothing: an `OSError` leaves the file as before."""
        if self._lacks_place:
            self._take_new_place()
        if self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0:
            raise OSError(f"{self.path}: the log was deleted during the run")
        self._file = self._file or self._open()
        before = self._file.seek(0, os.SEEK_END)
        data = (self._beginning() if before == 0 else b"") + data
        num_written = self._file.write(data)
        if num_written != len(data):
            self._file.truncate(before)
            raise OSError(f"{self.path}: only {num_written} of {len(data)} bytes could be written")

    def _move(self, path: Path) -> None:
        """Write to another place from now on."""
        self._close()
        self.path, self._lacks_place = path, False

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _place_name(self) -> str:
        return self.path.name

    def _take_new_place(self) -> None:
        self._lacks_place = True
        self._close()
        self._move(self._runs.claim(self._claim, self._is_used))
        if self.path != self._runs.given:
            text = "%s: %s holds the log of another run; this one is logged at %s"
            logging.getLogger("rltrainer").info(text, type(self).__name__, self._runs.given, self.path)

    def _take_newest_place(self, step: int) -> bool:
        self._move(self._runs.newest(self._is_log))
        if not self._is_log(self.path):
            return False
        self._drop_after(step)
        logging.getLogger("rltrainer").info("%s: goes on with the log at %s", type(self).__name__, self.path)
        return True

    def _prepare_files(self, state: LoggerState) -> Load | None:
        place, sizes = self._runs.named(state.place), {}
        for name, known in state.files.items():
            file = self._find(place, name)
            if file is None:
                continue
            size = known if isinstance(known, int) else known.size
            if not file.is_file():
                if size:
                    text = f"{file}: the log is missing, at the checkpoint it had {size} bytes."
                    warnings.warn(f"{text} It goes on without the missing rows.", RuntimeWarning, stacklevel=5)
            elif _is_continued(file, known, state.last_step):
                sizes[file] = size
            elif size or file.stat().st_size:
                text = f"{file}: is not the log that the checkpoint knows, and is left as it is."
                warnings.warn(f"{text} The run takes a log of its own.", RuntimeWarning, stacklevel=5)
                return None

        def load() -> None:
            self._move(place)
            for file, size in sizes.items():
                if file.stat().st_size > size:
                    os.truncate(file, size)
            self._hide_after(state.last_step)

        return load

    def _hide_after(self, step: int) -> None:
        """Hide, with the next piece, rows of later steps in files begun after a checkpoint."""
        return


class AppendedFile(FileIO):
    """A file that closes itself in silence: in one that nobody closed nothing is lost, so Python need not warn."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, "a+")

    def __del__(self) -> None:
        self.close()


def _is_continued(file: Path, known: int | Extent, last_step: int) -> bool:
    """Return whether a file begins with what a checkpoint knows of it."""
    if isinstance(known, Extent):
        return known.is_of(file)
    # Older checkpoints know the size only; no two event files have one name.
    is_long = file.stat().st_size >= known
    return is_long and (file.name.startswith(EVENT_FILES) or (known > 0 and ends_with_step(file, known, last_step)))
