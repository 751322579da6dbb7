"""The parents of loggers that write files: each run has a file or folder of its own, which only grows."""

import logging
import os
import warnings
from abc import abstractmethod
from io import FileIO
from pathlib import Path
from typing import ClassVar, Unpack

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.loggers.log_state import Extent, LoggerState
from rltrainer.loggers.logger import Logger, LoggerOptions
from rltrainer.loggers.run_path import RunPath
from rltrainer.types import Load


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
        self._ends: dict[Path, int] = {}  # where files are cut before the next piece
        self._lacks_place = False  # as the path could not be claimed: it may be another run's

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @abstractmethod
    def _is_log(self, path: Path) -> bool:
        """Return whether a log of this kind lies at a path."""

    def _is_used(self, path: Path) -> bool:
        """Return whether a run has written to a path, or beside it."""
        return self._is_log(path) or self._counters_of(path).exists()

    @abstractmethod
    def _claim(self, path: Path) -> None:
        """Make the log at a path in one step; a `FileExistsError` if another process has."""

    @abstractmethod
    def _files(self) -> dict[str, Path]:
        """Return the files of the log, by their names in a checkpoint."""

    @abstractmethod
    def _find(self, place: Path, name: str) -> Path | None:
        """Return the file of the log at a place by its name in a checkpoint, which is not trusted."""

    @abstractmethod
    def _size(self, file: Path) -> int:
        """Return how far a file was written."""

    @abstractmethod
    def _open(self) -> FileIO:
        """Open the file that is appended to."""

    @abstractmethod
    def _beginning(self) -> bytes:
        """Return what stands at the beginning of each file."""

    @abstractmethod
    def _counters_of(self, path: Path) -> Path:
        """Return the small file of counters of the log at a path."""

    @property
    def _place(self) -> Path:
        """The path of this run; before it has begun, of the last of all runs at the path."""
        return self.path if self._has_place else self._runs.newest(self._is_log)

    def _counters_file(self) -> Path | None:
        place = self._place
        return None if self._lacks_place or not self._is_log(place) else self._counters_of(place)

    def _append(self, data: bytes) -> None:
        """Write a piece, all or nothing: an `OSError` leaves the file as before."""
        if self._lacks_place:
            self._take_new_place()
        if self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0:
            raise OSError(f"{self.path}: the log was deleted during the run")
        self._cut()
        self._file = self._file or self._open()
        before = self._file.seek(0, os.SEEK_END)
        data = (self._beginning() if before == 0 else b"") + data
        num_written = self._file.write(data)
        if num_written != len(data):
            self._file.truncate(before)
            raise OSError(f"{self.path}: only {num_written} of {len(data)} bytes could be written")

    def _cut(self) -> None:
        for file, size in self._ends.items():
            if file.stat().st_size > size:
                os.truncate(file, size)
        self._ends = {}

    def _move(self, path: Path) -> None:
        """Write to another place from now on."""
        self._close()
        self.path, self._lacks_place, self._ends = path, False, {}

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

    def _measure_files(self) -> dict[str, Extent]:
        files = self._files().items()
        return {name: Extent.of(file, self._ends.get(file, self._size(file))) for name, file in files}

    def _prepare_files(self, state: LoggerState) -> Load | None:
        place, ends = self._runs.named(state.place), {}
        for name, known in state.files.items():
            file = self._find(place, name)
            if file is None:
                continue
            if not file.is_file():
                if known.size:
                    text = f"{file}: the log is missing, at the checkpoint it had {known.size} bytes."
                    warnings.warn(f"{text} It goes on without the missing rows.", RuntimeWarning, stacklevel=6)
            elif known.is_of(file):
                ends[file] = known.size
            elif known.size or file.stat().st_size:
                text = f"{file}: is not the log that the checkpoint knows, and is left as it is."
                warnings.warn(f"{text} The run takes a log of its own.", RuntimeWarning, stacklevel=6)
                return None

        def load() -> None:
            self._move(place)
            self._ends = ends
            self._hide_after(state.last_step)

        return load

    def _hide_after(self, step: int) -> None:
        """Hide, with the next piece, rows of later steps in files begun after a checkpoint."""
        return


class LineLogger(FileLogger):
    """Appends lines to a file of text; one that exists is continued, without a last line that a kill broke off.

    Raises:
        ParamsError: the path is a folder or a file that is no such log, or an option breaks its rule.
    """

    header: ClassVar[bytes]
    """The beginning of every such file; a whole line is written into a new file."""

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        owner = type(self).__name__
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ParamsError(field_error_text(owner, "path", "must be the path of a file", path))
        super().__init__(Path(path), Path(path).suffix, **options)
        if self.path.is_dir() or self.path.is_fifo() or self.path.is_socket():
            kind = "folder" if self.path.is_dir() else "pipe"
            raise ParamsError(field_error_text(owner, "path", f"must be a file, not a {kind}", path))
        if self.path.is_file() and self.path.stat().st_size and not self._is_log(self.path):
            rule = "must be a new file or a log of this kind"
            raise ParamsError(field_error_text(owner, "path", rule, path, "It would be damaged."))

    def _is_log(self, path: Path) -> bool:
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            begin = file.read(len(self.header))
        # A kill while the file was begun may have left a part of the header.
        return begin != b"" and self.header.startswith(begin)

    def _claim(self, path: Path) -> None:
        if not path.is_char_device():  # /dev/null serves any number of runs
            path.touch(exist_ok=False)

    def _files(self) -> dict[str, Path]:
        return {"log": self.path}

    def _find(self, place: Path, name: str) -> Path | None:
        return place if name == "log" else None

    def _size(self, file: Path, chunk_size: int = 4096) -> int:
        """Return the position after the last whole line; 0 where there is no file."""
        if not file.is_file():
            return 0
        with open(file, "rb") as lines:
            end = lines.seek(0, os.SEEK_END)
            while end > 0:
                start = max(0, end - chunk_size)
                lines.seek(start)
                newline = lines.read(end - start).rfind(b"\n")
                if newline >= 0:
                    return start + newline + 1
                end = start
        return 0

    def _open(self) -> FileIO:
        file = AppendedFile(self.path)
        if (end := self._size(self.path)) < file.seek(0, os.SEEK_END):
            file.truncate(end)
        return file

    def _beginning(self) -> bytes:
        return self.header if self.header.endswith(b"\n") else b""

    def _counters_of(self, path: Path) -> Path:
        return path.with_name(f"{path.name}.progress.json")


class AppendedFile(FileIO):
    """A file that closes itself in silence: in one that nobody closed nothing is lost, so Python need not warn."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, "a+")

    def __del__(self) -> None:
        self.close()
