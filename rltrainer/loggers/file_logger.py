"""What loggers that write files share: each run has a file or folder of its own."""

import logging
from abc import abstractmethod
from pathlib import Path
from typing import Unpack

from rltrainer.loggers.logger import Logger, LoggerOptions
from rltrainer.loggers.progress import Progress
from rltrainer.loggers.run_path import RunPath


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

    def _return_to_place(self, name: str | None) -> None:
        self._move(self._runs.named(name))

    def _move(self, path: Path) -> None:
        self._close()
        self._runs.path = path
