"""Log to one CSV file in long format, so that new names need no new columns."""

import os
import warnings
from typing import Unpack

from rltrainer.loggers.line_file import LineFile
from rltrainer.loggers.logger import Kind, Logger, LoggerOptions, Row
from rltrainer.loggers.progress import Progress, parse_progress


class CSVLogger(Logger):
    """Write one line per number: `step,name,value`, such as `2048,training/return,23.5`.

    An existing log is continued. NaN is `nan`, None is empty. Read it with
    `pandas.read_csv(path).pivot(index="step", columns="name", values="value")`.

    Args:
        path: the file; its folder is made.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        ParamsError: the path is a folder or a file that is no such log, or an option breaks its rule.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        super().__init__(**options)
        self._file = LineFile(type(self).__name__, path, header="step,name,value\n")

    def read_progress(self) -> Progress | None:
        """Return what the last intact `log_epoch` wrote, or None; incomplete ones are skipped with a warning."""
        epochs: list[dict[str, object]] = []
        for line in self._file.lines():
            if ",epoch/" not in line:
                continue
            _, name, value = [*line.split(","), "", ""][:3]
            if name == "epoch/epoch" or not epochs:
                epochs.append({})
            epochs[-1][name] = _parse(value)
        for row in reversed(epochs):
            try:
                return parse_progress(row)
            except ValueError as error:
                warnings.warn(f"{self._file.path}: skipped an incomplete epoch ({error})", RuntimeWarning, stacklevel=2)
        return None

    def __repr__(self) -> str:
        return f"CSVLogger({str(self._file.path)!r})"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        lines = (f"{step},{_quoted(name)},{'' if value is None else repr(value)}\n" for name, value in values.items())
        self._file.append("".join(lines))

    def _close(self) -> None:
        self._file.close()

    def _file_sizes(self) -> dict[str, int]:
        return {"csv": self._file.size()}

    def _continue_files(self, sizes: dict[str, int]) -> None:
        self._file.cut(sizes["csv"])


def _quoted(name: str) -> str:
    """Return a name as a CSV field; a line break in it would break the lines, so it becomes a space."""
    name = " ".join(name.splitlines())
    return '"' + name.replace('"', '""') + '"' if '"' in name or "," in name else name


def _parse(value: str) -> object:
    """Return the number in a field of an epoch row, None for an empty field, the text itself if it is broken."""
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value or None
