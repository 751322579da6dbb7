"""A text file of lines: what CSV and JSON lines logs are made of.

Knows nothing of what a line says. A line that a kill broke off is dropped before the next one is written.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.loggers.extent import Extent
from rltrainer.loggers.log_file import AppendedFile, LogFile


class LineFile(LogFile):
    """Appends lines to a file.

    Args:
        owner: the logger's class, for error texts.
        path: the file; if it exists it is continued.
        name: what a checkpoint calls it.
        header: how every such file begins; a whole line is written into a new file.
        step_of: returns the step in a line, or None in a broken one.

    Raises:
        ParamsError: `path` is no path, a folder, or a file that does not begin with `header`.
    """

    def __init__(
        self,
        owner: str,
        path: str | os.PathLike[str],
        name: str,
        header: bytes,
        step_of: Callable[[str], int | float | None],
    ) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ParamsError(field_error_text(owner, "path", "must be the path of a file", path))
        super().__init__(Path(path))
        self._name, self._header, self._step_of = name, header, step_of
        self._keep: int | None = None
        if self.path.is_dir():
            raise ParamsError(field_error_text(owner, "path", "must be a file, not a folder", path))
        if self.path.is_file() and self.path.stat().st_size and not self.is_log(self.path):
            rule = "must be a new file or a log of this kind"
            raise ParamsError(field_error_text(owner, "path", rule, path, "It would be damaged."))

    def is_log(self, path: Path) -> bool:
        """Return whether a file has begun as this one does."""
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            begin = file.read(len(self._header))
        # A kill while the file was begun may have left a part of the header.
        return begin != b"" and self._header.startswith(begin)

    def move(self, path: Path) -> None:
        """Write to another file from now on."""
        super().move(path)
        self._keep = None

    def drop_after(self, step: int) -> None:
        """Remove, with the next line, what follows the last line of this step or an earlier one."""
        self.close()
        position, self._keep = 0, 0
        if self.path.is_file():
            with open(self.path, "rb") as file:
                for line in file:
                    position += len(line)
                    found = self._step_of(line[:-1].decode(errors="replace")) if line.endswith(b"\n") else None
                    if found is not None and found <= step:
                        self._keep = position

    def extents(self) -> dict[str, Extent]:
        """Return how far the file was written: its whole lines that stay."""
        if not self.path.is_file():
            return {self._name: Extent.of(self.path, 0)}
        with open(self.path, "rb", buffering=0) as file:
            return {self._name: Extent.of(self.path, self._end(file))}

    def find(self, place: Path, name: str) -> Path | None:
        """Return the file itself by its name."""
        return place if name == self._name else None

    def lines(self, path: Path) -> Iterator[str]:
        """Yield the whole lines of such a file without their ends; warn of a last line that was truncated."""
        if not path.is_file():
            return
        with open(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    warnings.warn(f"{path}: the last line is truncated and was skipped", RuntimeWarning, stacklevel=2)
                    return
                yield line[:-1].decode(errors="replace")

    def _open(self) -> FileIO:
        file = AppendedFile(self.path)
        try:
            end, self._keep = self._end(file), None
            if end < file.seek(0, os.SEEK_END):
                file.truncate(end)
        except BaseException:
            file.close()
            raise
        return file

    def _beginning(self) -> bytes:
        return self._header if self._header.endswith(b"\n") else b""

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
