"""Loggers that write files: each run has a numbered file or folder of its own, which only grows."""

import contextlib
import itertools
import json
import logging
import mmap
import os
import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar, Unpack

from rltrainer.errors import ParamsError
from rltrainer.loggers.log_state import LoggerState, LogPosition
from rltrainer.loggers.logger import Kind, Logger, LoggerOptions, Row
from rltrainer.validation.field_rules import AnyPath, checked

Test = Callable[[Path], bool]


@dataclass
class NumberedPath:
    """The paths of several runs: the given one, and the same with numbers: `log.csv`, `log-2.csv`, `log-3.csv`."""

    given: Path
    # The end of the name, which stays behind the number.
    suffix: str

    def claim(self, make: Callable[[Path], object] = Path.mkdir, is_used: Test | None = None) -> Path:
        """Make the first free one of these files or folders, and return it: no other process gets the same.

        `make` makes it in one step, or raises a `FileExistsError`. `is_used`: which paths that `make` takes are in use.
        """
        self.given.parent.mkdir(parents=True, exist_ok=True)
        for path in itertools.chain([self.given], map(self._numbered, itertools.count(2))):
            if is_used is not None and (is_used(path) or (path != self.given and path.exists())):
                continue
            with contextlib.suppress(FileExistsError):
                make(path)
                break
        return path

    def newest(self, is_log: Test) -> Path:
        """Return the log that was written to last; the given path if there is none."""
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(self._numbered(2).parent)
        numbers = sorted(number for number in map(self._number, names) if number is not None)

        def last_change(path: Path) -> int:
            files = path.iterdir() if path.is_dir() else [path]
            return max((file.lstat().st_mtime_ns for file in files), default=0)

        return max(filter(is_log, [self.given, *map(self._numbered, numbers)]), key=last_change, default=self.given)

    def named(self, name: str | None) -> Path:
        """Return the path of this name, which is not trusted; the given path for any other name."""
        number = self._number(name or "")
        return self.given if number is None or name == self.given.name else self._numbered(number)

    def _number(self, name: str) -> int | None:
        stem = self._numbered(0).name.removesuffix(f"0{self.suffix}")
        found = re.fullmatch(rf"{re.escape(stem)}(\d{{1,9}}){re.escape(self.suffix)}", name, re.ASCII)
        return None if found is None else int(found[1])

    def _numbered(self, number: int) -> Path:
        # The current folder or one above: a folder beside it would surprise, so the numbers lie in it.
        if self.given.name in ("", ".."):
            return self.given / str(number)
        return self.given.with_name(f"{self.given.name.removesuffix(self.suffix)}-{number}{self.suffix}")


class FileLogger(Logger):
    """A logger at a path, or at the next free number of it.

    A new run claims its path in one step, so that processes that start together get a log each. Every piece goes to
    the operating system in one unbuffered write, so a killed process loses none.
    """

    def __init__(self, path: Path, suffix: str, **options: Unpack[LoggerOptions]) -> None:
        super().__init__(**options)
        self.path, self._runs = path, NumberedPath(path, suffix)
        self._file: FileIO | None = None
        self._cuts: dict[Path, int] = {}  # sizes to which the next piece cuts files
        self._is_unclaimed = False  # claiming the path failed: the file there may be another run's

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @abstractmethod
    def _is_log(self, path: Path) -> bool:
        """Return whether a log of this kind lies at a path."""

    @abstractmethod
    def _claim(self, path: Path) -> None:
        """Make the log at a path in one step; a `FileExistsError` if another process has made it."""

    @abstractmethod
    def _files(self, path: Path) -> dict[str, Path]:
        """Return the files of the log at a path, by their names in a checkpoint."""

    @abstractmethod
    def _open(self) -> FileIO:
        """Open the file that is appended to."""

    @abstractmethod
    def _header(self) -> bytes:
        """Return what each file starts with."""

    @abstractmethod
    def _counters_of(self, path: Path) -> Path:
        """Return the small file of counters of the log at a path."""

    def _is_used(self, path: Path) -> bool:
        return self._is_log(path) or self._counters_of(path).exists()

    def _size(self, file: Path) -> int:
        """Return the size of all whole pieces of a file."""
        return file.stat().st_size

    def _current(self) -> Path:
        return self.path if self._state.has_log else self._runs.newest(self._is_log)

    def _counters_file(self) -> Path | None:
        path = self._current()
        return None if self._is_unclaimed or not self._is_log(path) else self._counters_of(path)

    def _append(self, data: bytes) -> None:
        """Write a piece, all or nothing: an `OSError` leaves the file as before."""
        if self._is_unclaimed:
            self._begin_log()
        # A deleted file can still be written to, and its rows would be lost in silence.
        if self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0:
            raise OSError(f"{self.path}: the log was deleted during the run")
        self._cut()
        # Appended to: if another program truncates or moves the file, rows still go to its end.
        self._file = self._file or self._open()
        before = self._file.seek(0, os.SEEK_END)
        # One write, header included: a kill between two would leave a file that no reader takes for a log.
        data = (self._header() if before == 0 else b"") + data
        num_written = self._file.write(data)
        if num_written != len(data):
            self._file.truncate(before)
            raise OSError(f"{self.path}: only {num_written} of {len(data)} bytes could be written")

    def _cut(self) -> None:
        for file, size in self._cuts.items():
            if file.stat().st_size > size:
                os.truncate(file, size)
        self._cuts = {}

    def _move(self, path: Path, cuts: dict[Path, int], last_step: int | None) -> None:
        """Write to a log from now on, after its rows up to a step; None starts a new log."""
        self._close()
        self.path, self._is_unclaimed, self._cuts = path, False, cuts

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _log_name(self) -> str:
        return self.path.name

    def _begin_log(self) -> None:
        self._is_unclaimed = True
        self._close()
        self._move(self._runs.claim(self._claim, self._is_used), {}, None)
        if self.path != self._runs.given:
            text = "%s: %s holds the log of another run; this one is logged at %s"
            logging.getLogger("rltrainer").info(text, type(self).__name__, self._runs.given, self.path)

    def _measure_files(self) -> dict[str, LogPosition]:
        files = self._files(self.path).items()
        return {name: LogPosition.of(file, self._cuts.get(file, self._size(file))) for name, file in files}

    def _check_files(self, state: LoggerState) -> None:
        for warning in self._compare(state)[1]:
            warnings.warn(warning, RuntimeWarning, stacklevel=5)

    def _continue_files(self, state: LoggerState) -> bool:
        cuts, _ = self._compare(state)
        if cuts is not None:
            self._move(self._runs.named(state.log), cuts, state.last_step)
        return cuts is not None

    def _compare(self, state: LoggerState) -> tuple[dict[Path, int] | None, list[str]]:
        """Return the sizes to cut a state's files to, None if one belongs to another log; and what to warn of."""
        path = self._runs.named(state.log)
        cuts: dict[Path, int] = {}
        missing: list[str] = []
        files = self._files(path)
        for name, known in state.files.items():
            file = files.get(name, path / name)
            if name not in files or not file.is_file():
                if known.size:
                    text = f"{file}: the log is missing, at the checkpoint it had {known.size} bytes."
                    missing.append(f"{text} The run continues without these rows.")
            elif known.is_of(file):
                cuts[file] = known.size
            elif known.size or file.stat().st_size:
                text = f"{file}: is not the log that the checkpoint knows, and is left as it is."
                return None, [*missing, f"{text} The run takes a log of its own."]
        return cuts, missing


class LineLogger(FileLogger):
    """Appends lines to a text file; it continues an existing log, without a last line that a kill broke off.

    A path of something else, such as another file, raises a `ParamsError`.
    """

    # What every such file starts with; a new file gets it if it is a whole line.
    header: ClassVar[bytes]

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        owner = type(self).__name__
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ParamsError.about(owner, "path", "must be the path of a file", path)
        checked(owner, "path", path, AnyPath)
        super().__init__(Path(path), Path(path).suffix, **options)
        if self.path.is_dir() or self.path.is_fifo() or self.path.is_socket():
            kind = "folder" if self.path.is_dir() else "pipe"
            raise ParamsError.about(owner, "path", f"must be a file, not a {kind}", path)
        if self.path.is_file() and self.path.stat().st_size and not self._is_log(self.path):
            rule = "must be a new file or a log of this kind"
            raise ParamsError.about(owner, "path", rule, path, "It would be damaged.")

    def _is_log(self, path: Path) -> bool:
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            start = file.read(len(self.header))
        # A kill may have left a part of the header.
        return start != b"" and self.header.startswith(start)

    def _claim(self, path: Path) -> None:
        if not path.is_char_device():  # /dev/null serves any number of runs
            path.touch(exist_ok=False)  # O_EXCL: of processes at once, one succeeds

    def _files(self, path: Path) -> dict[str, Path]:
        return {"log": path}

    def _size(self, file: Path) -> int:
        """Return the position after the last whole line; 0 without a file."""
        if not file.is_file() or file.stat().st_size == 0:
            return 0
        # A map reads the pages behind the last line break only, however long the log is.
        with open(file, "rb") as whole, mmap.mmap(whole.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.rfind(b"\n") + 1

    def _open(self) -> FileIO:
        file = AppendedFile(self.path)
        if (end := self._size(self.path)) < file.seek(0, os.SEEK_END):
            file.truncate(end)
        return file

    def _header(self) -> bytes:
        return self.header if self.header.endswith(b"\n") else b""

    def _counters_of(self, path: Path) -> Path:
        return path.with_name(f"{path.name}.progress.json")


class AppendedFile(FileIO):
    """A file that closes itself in silence: an unbuffered file loses nothing, so Python need not warn."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, "a+")

    def __del__(self) -> None:
        self.close()


class CSVLogger(LineLogger):
    """Writes one line per number, `step,name,value`, such as `2048,training/return,23.5`.

    New names need no new columns. NaN is `nan`, None is empty. Read it with
    `pandas.read_csv(path).pivot(index="step", columns="name", values="value")`. Beside `log.csv` lie the params of the
    run, `log.csv.params.json`, and the counters for `resume_from_log`, `log.csv.progress.json`.

    If the path exists when a run starts, the run takes `log-2.csv` and so on.
    """

    header = b"step,name,value\n"

    def _is_used(self, path: Path) -> bool:
        return super()._is_used(path) or _params_file(path).exists()

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        lines = []
        for name, value in values.items():
            name = " ".join(name.splitlines())  # a line break would break the line
            name = '"' + name.replace('"', '""') + '"' if '"' in name or "," in name else name
            lines.append(f"{step},{name},{'' if value is None else repr(value)}\n")
        self._append("".join(lines).encode())

    def _write_params(self, params: Mapping[str, Any]) -> None:
        write_new(_params_file(self.path), json.dumps(params, indent=2) + "\n")


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet: a `FileExistsError`, never a user's file overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "x") as file:
        file.write(text)


def _params_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.params.json")
