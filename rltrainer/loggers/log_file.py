"""A file that a log is written to: it only grows, each piece at once and as a whole."""

import os
from abc import ABC, abstractmethod
from io import FileIO
from pathlib import Path

from rltrainer.loggers.extent import Extent


class LogFile(ABC):
    """Appends to a file, which is opened, and its folder made, with the first piece.

    Every piece goes to the operating system in one unbuffered write, so that a killed process loses none.

    Args:
        path: the log's file or folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def append(self, data: bytes) -> None:
        """Write a piece, all or nothing.

        Raises:
            OSError: it could not be written; the file is as before.
        """
        self._file = self._file or self._open()
        before = self._file.seek(0, os.SEEK_END)
        data = (self._beginning() if before == 0 else b"") + data
        num_written = self._file.write(data)
        if num_written != len(data):
            self._file.truncate(before)
            raise OSError(f"{self.path}: only {num_written} of {len(data)} bytes could be written")

    def close(self) -> None:
        """Release the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def move(self, path: Path) -> None:
        """Write to another place from now on."""
        self.close()
        self.path = path

    @abstractmethod
    def is_log(self, path: Path) -> bool:
        """Return whether a log of this kind lies at a path."""

    @abstractmethod
    def drop_after(self, step: int) -> None:
        """Remove or hide, with the next piece, the rows of later steps than this."""

    def hide_after(self, step: int) -> None:
        """Hide, with the next piece, rows of later steps that are in files begun after a checkpoint."""
        return

    @abstractmethod
    def extents(self) -> dict[str, Extent]:
        """Return how far each file of the log was written, by name."""

    @abstractmethod
    def find(self, place: Path, name: str) -> Path | None:
        """Return the file of the log at a place by a name of `extents`; the name is not trusted."""

    @abstractmethod
    def _open(self) -> FileIO:
        """Open the file that is appended to."""

    @abstractmethod
    def _beginning(self) -> bytes:
        """Return what stands at the beginning of each file."""


class AppendedFile(FileIO):
    """A file that closes itself in silence: in one that nobody closed nothing is lost, so Python need not warn."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, "a+")

    def __del__(self) -> None:
        self.close()
