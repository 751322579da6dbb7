"""A text file of lines that only grows: what CSV and JSON lines logs are made of.

Knows nothing of what a line says. A line that a kill cut short is dropped before the next one is written.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.loggers.append_file import AppendFile
from rltrainer.loggers.extent import Extent


class LineFile:
    """Append lines to a file, which is opened, and its folder made, at the first line.

    Every line goes to the operating system in one unbuffered write, so that a killed process loses none.

    Args:
        owner: the logger's class, for error texts.
        path: the file; if it exists it is continued.
        header: how every such file begins; a whole line is written into a new file.

    Raises:
        ParamsError: `path` is no path, a folder, or a file that does not begin with `header`.
    """

    def __init__(self, owner: str, path: str | os.PathLike[str], header: str) -> None:
        self._file: FileIO | None = None
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ParamsError(field_error_text(owner, "path", "must be the path of a file", path))
        self.path = Path(path)
        self._header = header
        self._keep: int | None = None
        self._first_line = header.encode() if header.endswith("\n") else b""
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
        return begin != b"" and self._header.encode().startswith(begin)

    def move(self, path: Path) -> None:
        """Write to another file from now on."""
        self.close()
        self.path, self._keep = path, None

    def drop_after_last(self, is_kept: Callable[[str], bool]) -> None:
        """Remove, when the next line is written, what follows the last line that is to be kept."""
        self.close()
        position, self._keep = 0, 0
        if self.path.is_file():
            with open(self.path, "rb") as file:
                for line in file:
                    position += len(line)
                    if line.endswith(b"\n") and is_kept(line[:-1].decode(errors="replace")):
                        self._keep = position

    def append(self, lines: str) -> None:
        """Write whole lines, all or nothing.

        Raises:
            OSError: they could not be written; the file is as before.
        """
        self._file = self._file or self._open()
        before = self._file.seek(0, os.SEEK_END)
        data = (self._first_line if before == 0 else b"") + lines.encode()
        num_written = self._file.write(data)
        if num_written != len(data):
            self._file.truncate(before)
            raise OSError(f"{self.path}: only {num_written} of {len(data)} bytes could be written")

    def close(self) -> None:
        """Release the file; a later line opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def extent(self) -> Extent:
        """Return how far the file was written: its whole lines that stay."""
        if not self.path.is_file():
            return Extent.of(self.path, 0)
        with open(self.path, "rb", buffering=0) as file:
            end = _end_of_last_line(file)
        return Extent.of(self.path, end if self._keep is None else min(end, self._keep))

    def lines(self, path: Path) -> Iterator[str]:
        """Yield the whole lines of such a file without their ends; warn of a last line that was cut short."""
        if not path.is_file():
            return
        with open(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    warnings.warn(f"{path}: the last line is cut short and was skipped", RuntimeWarning, stacklevel=2)
                    return
                yield line[:-1].decode(errors="replace")

    def _open(self) -> FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = AppendFile(self.path)
        try:
            end = _end_of_last_line(file)
            end, self._keep = (end if self._keep is None else min(end, self._keep)), None
            if end < file.seek(0, os.SEEK_END):
                file.truncate(end)
        except BaseException:
            file.close()
            raise
        return file


def _end_of_last_line(file: FileIO, chunk_size: int = 4096) -> int:
    """Return the position after the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - chunk_size)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
