"""Log to one file of JSON lines."""

import json
import os
import warnings
from typing import Unpack

from rltrainer.loggers.line_file import LineFile
from rltrainer.loggers.logger import Kind, Logger, LoggerOptions, Row
from rltrainer.loggers.progress import Progress, parse_progress


class JSONLinesLogger(Logger):
    """Write one JSON object per row: `{"kind": "training", "step": 2048, "training/return": 23.5}`.

    An existing log is continued. NaN is written as `NaN`, as Python and pandas read and write it. Read it with
    `pandas.read_json(path, lines=True)`.

    Args:
        path: the file; its folder is made.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        ParamsError: the path is a folder or a file that is no such log, or an option breaks its rule.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        super().__init__(**options)
        self._file = LineFile(type(self).__name__, path, header='{"kind": ')

    def read_progress(self) -> Progress | None:
        """Return what the last intact `log_epoch` wrote, or None; broken lines are skipped with a warning."""
        progress = None
        for number, line in enumerate(self._file.lines(), start=1):
            try:
                row = json.loads(line)
                if row["kind"] == "epoch":
                    progress = parse_progress(row)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                text = f"{self._file.path}: skipped line {number}, which is broken ({type(error).__name__}: {error})"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        return progress

    def __repr__(self) -> str:
        return f"JSONLinesLogger({str(self._file.path)!r})"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        self._file.append(json.dumps({"kind": kind, "step": step, **values}) + "\n")

    def _close(self) -> None:
        self._file.close()

    def _file_sizes(self) -> dict[str, int]:
        return {"json_lines": self._file.size()}

    def _continue_files(self, sizes: dict[str, int]) -> None:
        self._file.cut(sizes["json_lines"])
