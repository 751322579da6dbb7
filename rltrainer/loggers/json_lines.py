"""Log to one file of JSON lines."""

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from rltrainer.loggers.file_logger import Epochs, FileLogger
from rltrainer.loggers.line_file import LineFile
from rltrainer.loggers.logger import Kind, LoggerOptions, Row


class JSONLinesLogger(FileLogger):
    """Write one JSON object per row: `{"kind": "training", "step": 2048, "training/return": 23.5}`.

    NaN is written as `NaN`, as Python and pandas read and write it. Read it with `pandas.read_json(path, lines=True)`.
    The first row, of the kind `params`, holds what trainer and algorithm were told.

    Args:
        path: the file; its folder is made. If a run has used it, `log-2.jsonl` and so on.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        ParamsError: the path is a folder or a file that is no such log, or an option breaks its rule.
    """

    _file: LineFile

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        file = LineFile(type(self).__name__, path, "json_lines", b'{"kind": ', _step_of)
        super().__init__(file, file.path.suffix, **options)

    def _epochs(self, path: Path) -> Epochs:
        for number, line in enumerate(self._file.lines(path), start=1):
            yield f"line {number}, which is broken", partial(_epoch_row, line)

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        self._file.append((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())

    def _write_params(self, params: Mapping[str, Any]) -> None:
        self._file.append((json.dumps({"kind": "params", "step": 0, **params}) + "\n").encode())


def _epoch_row(line: str) -> dict[str, Any] | None:
    row = json.loads(line)
    return row if row["kind"] == "epoch" else None


def _step_of(line: str) -> int | float | None:
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return step if isinstance(step, int | float) else None
