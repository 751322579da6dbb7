"""The parent of loggers to a text file of lines: CSV and JSON lines.

Knows nothing of what a line says. A line that a kill broke off is dropped before the next one is written.
"""

import os
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import ClassVar, Unpack

from rltrainer.errors import CheckpointError, ParamsError, field_error_text
from rltrainer.loggers.extent import Extent
from rltrainer.loggers.file_logger import AppendedFile, FileLogger
from rltrainer.loggers.logger import LoggerOptions
from rltrainer.regular_file import open_regular, read_lines


class LineLogger(FileLogger):
    """Appends lines to a file; one that exists is continued.

    Raises:
        ParamsError: the path is a folder or a file that is no such log, or an option breaks its rule.
    """

    name_in_state: ClassVar[str]
    header: ClassVar[bytes]
    """The beginning of every such file; a whole line is written into a new file."""

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        owner = type(self).__name__
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ParamsError(field_error_text(owner, "path", "must be the path of a file", path))
        super().__init__(Path(path), Path(path).suffix, **options)
        self._keep: int | None = None
        if self.path.is_dir() or self.path.is_fifo() or self.path.is_socket():
            kind = "folder" if self.path.is_dir() else "pipe"
            raise ParamsError(field_error_text(owner, "path", f"must be a file, not a {kind}", path))
        if self.path.is_file() and self.path.stat().st_size and not self._is_log(self.path):
            rule = "must be a new file or a log of this kind"
            raise ParamsError(field_error_text(owner, "path", rule, path, "It would be damaged."))

    @abstractmethod
    def _step_of(self, line: str) -> int | float | None:
        """Return the step in a line, None in a broken one."""

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

    def _move(self, path: Path) -> None:
        super()._move(path)
        self._keep = None

    def _drop_after(self, step: int) -> None:
        """Keep what stands up to the last line of this step or an earlier one."""
        position, self._keep = 0, 0
        with open(self.path, "rb") as file:
            for line in read_lines(file):
                position += len(line)
                found = self._step_of(line[:-1].decode(errors="replace")) if line.endswith(b"\n") else None
                if found is not None and found <= step:
                    self._keep = position

    def _measure_files(self) -> dict[str, Extent]:
        """Return how far the file was written: its whole lines that stay."""
        if not self.path.is_file():
            return {self.name_in_state: Extent.of(self.path, 0)}
        with open(self.path, "rb", buffering=0) as file:
            return {self.name_in_state: Extent.of(self.path, self._end(file))}

    def _find(self, place: Path, name: str) -> Path | None:
        return place if name == self.name_in_state else None

    def _lines(self, path: Path) -> Iterator[str]:
        """Yield the whole lines of such a file without their ends; warn of a last line that was truncated."""
        if not path.is_file():
            return
        try:
            with open_regular(path) as file:
                for line in read_lines(file):
                    if not line.endswith(b"\n"):
                        text = f"{path}: the last line is truncated and was skipped"
                        warnings.warn(text, RuntimeWarning, stacklevel=2)
                        return
                    yield line[:-1].decode(errors="replace")
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}") from error

    def _open(self) -> FileIO:
        file = AppendedFile(self.path)
        end, self._keep = self._end(file), None
        if end < file.seek(0, os.SEEK_END):
            file.truncate(end)
        return file

    def _beginning(self) -> bytes:
        return self.header if self.header.endswith(b"\n") else b""

    def _end(self, file: FileIO) -> int:
        """Return the position after the last whole line that stays."""
        end = _end_of_last_line(file)
        return end if self._keep is None else min(end, self._keep)


def _end_of_last_line(file: FileIO, chunk_size: int = 4096) -> int:
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - chunk_size)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
