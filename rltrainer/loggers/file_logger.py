"""What loggers that write files share: each run has a file or folder of its own."""

import logging
import os
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Unpack

from rltrainer.loggers.event_file import EVENT_FILES
from rltrainer.loggers.extent import Extent, ends_with_step
from rltrainer.loggers.logger import Logger, LoggerOptions
from rltrainer.loggers.logger_state import LoggerState
from rltrainer.loggers.progress import Progress
from rltrainer.loggers.run_path import RunPath
from rltrainer.types import Load


class FileLogger(Logger):
    """A logger at a path, or at the same with a number if other runs have used it.

    Args:
        runs: the paths of this run and others.
        options: intervals and `strict`, as in `Logger`.
    """

    def __init__(self, runs: RunPath, **options: Unpack[LoggerOptions]) -> None:
        super().__init__(**options)
        self._runs = runs

    @property
    def path(self) -> Path:
        """Where this run is logged."""
        return self._runs.path

    def read_progress(self) -> Progress | None:
        """Return what the last intact `log_epoch` wrote, or None; broken ones are skipped with a warning.

        Before a run has begun, it is the last of all runs at this path that is read.
        """
        return self._read_progress(self.path if self._has_place else self._runs.newest())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @abstractmethod
    def _read_progress(self, path: Path) -> Progress | None:
        """Return what `read_progress` shall, of the log at this path."""

    def _place_name(self) -> str:
        return self.path.name

    def _take_new_place(self) -> None:
        path = self._runs.unused()
        self._move(path)
        if path != self._runs.given:
            text = "%s: %s holds the log of another run; this one is logged at %s"
            logging.getLogger("rltrainer").info(text, type(self).__name__, self._runs.given, path)

    @abstractmethod
    def _drop_after(self, step: int) -> None:
        """Have the next row remove or hide those of later steps than this."""

    def _take_newest_place(self, step: int) -> bool:
        self._move(self._runs.newest())
        if not self._runs.is_log(self.path):
            return False
        self._drop_after(step)
        logging.getLogger("rltrainer").info("%s: goes on with the log at %s", type(self).__name__, self.path)
        return True

    @abstractmethod
    def _file_at(self, place: Path, name: str) -> Path | None:
        """Return a file of the log at this place by the name that a checkpoint gives it, which is not trusted."""

    def _prepare_files(self, state: LoggerState) -> Load | None:
        place, sizes = self._runs.named(state.place), {}
        for name, known in state.files.items():
            file = self._file_at(place, name)
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
            self._hide_rows_after(state.last_step)

        return load

    def _hide_rows_after(self, step: int) -> None:
        """Hide rows of later steps that are in files begun after a checkpoint."""
        return

    def _move(self, path: Path) -> None:
        self._close()
        self._runs.path = path


def _is_continued(file: Path, known: int | Extent, last_step: int) -> bool:
    """Whether a file begins with what a checkpoint knows of it."""
    if isinstance(known, Extent):
        return known.is_of(file)
    # Older checkpoints know the size only; no two event files have one name.
    is_long = file.stat().st_size >= known
    return is_long and (file.name.startswith(EVENT_FILES) or (known > 0 and ends_with_step(file, known, last_step)))
