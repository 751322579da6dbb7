"""The parent of loggers that write files: each run has a file or folder of its own."""

import logging
import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

from rltrainer.loggers.event_file import EVENT_FILES
from rltrainer.loggers.extent import Extent, ends_with_step
from rltrainer.loggers.log_file import LogFile
from rltrainer.loggers.logger import Logger, LoggerOptions
from rltrainer.loggers.logger_state import LoggerState
from rltrainer.loggers.progress import Progress, parse_progress
from rltrainer.loggers.run_path import RunPath
from rltrainer.types import Load

Epochs = Iterator[tuple[str, Callable[[], Mapping[str, Any] | None]]]
"""Rows that may be of epochs, oldest first: words for each, and what reads it, None if it is another row."""


class FileLogger(Logger):
    """A logger at a path, or at the same with a number if other runs have used it.

    Args:
        file: what is written to.
        suffix: the end of the path's name that stays behind the number.
        side: returns the file that lies beside a log; None if there is none.
        options: intervals and `strict`, as in `Logger`.
    """

    def __init__(
        self, file: LogFile, suffix: str, side: Callable[[Path], Path] | None = None, **options: Unpack[LoggerOptions]
    ) -> None:
        super().__init__(**options)
        self._file, self._runs = file, RunPath(file.path, suffix, file.is_log, side)

    @property
    def path(self) -> Path:
        """The file or folder of this run."""
        return self._file.path

    def read_progress(self) -> Progress | None:
        """Return what the last intact `log_epoch` wrote, or None; broken ones are skipped with a warning.

        Before a run has begun, it is the last of all runs at this path that is read.
        """
        path = self.path if self._has_place else self._runs.newest()
        progress = None
        for words, read in self._epochs(path):
            try:
                if (row := read()) is not None:
                    progress = parse_progress(row)
            except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
                warnings.warn(f"{path}: skipped {words} ({error})", RuntimeWarning, stacklevel=2)
        return progress

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @abstractmethod
    def _epochs(self, path: Path) -> Epochs:
        """Yield the epoch rows of the log at this path."""

    def _close(self) -> None:
        self._file.close()

    def _measure_files(self) -> dict[str, Extent]:
        return self._file.extents()

    def _place_name(self) -> str:
        return self.path.name

    def _take_new_place(self) -> None:
        path = self._runs.unused()
        self._file.move(path)
        if path != self._runs.given:
            text = "%s: %s holds the log of another run; this one is logged at %s"
            logging.getLogger("rltrainer").info(text, type(self).__name__, self._runs.given, path)

    def _take_newest_place(self, step: int) -> bool:
        self._file.move(self._runs.newest())
        if not self._file.is_log(self.path):
            return False
        self._file.drop_after(step)
        logging.getLogger("rltrainer").info("%s: goes on with the log at %s", type(self).__name__, self.path)
        return True

    def _prepare_files(self, state: LoggerState) -> Load | None:
        place, sizes = self._runs.named(state.place), {}
        for name, known in state.files.items():
            file = self._file.find(place, name)
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
            self._file.move(place)
            for file, size in sizes.items():
                if file.stat().st_size > size:
                    os.truncate(file, size)
            self._file.hide_after(state.last_step)

        return load


def _is_continued(file: Path, known: int | Extent, last_step: int) -> bool:
    """Return whether a file begins with what a checkpoint knows of it."""
    if isinstance(known, Extent):
        return known.is_of(file)
    # Older checkpoints know the size only; no two event files have one name.
    is_long = file.stat().st_size >= known
    return is_long and (file.name.startswith(EVENT_FILES) or (known > 0 and ends_with_step(file, known, last_step)))
