"""Log to one file of JSON lines."""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from rltrainer.loggers.extent import Extent
from rltrainer.loggers.file_logger import FileLogger
from rltrainer.loggers.line_file import LineFile
from rltrainer.loggers.logger import Kind, LoggerOptions, Row
from rltrainer.loggers.progress import Progress, parse_progress
from rltrainer.loggers.run_path import RunPath


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

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        self._file = LineFile(type(self).__name__, path, header='{"kind": ')
        super().__init__(RunPath(self._file.path, self._file.path.suffix, self._file.is_log), **options)

    def _read_progress(self, path: Path) -> Progress | None:
        """Return what the last intact `log_epoch` wrote, or None; broken lines are skipped with a warning."""
        progress = None
        for number, line in enumerate(self._file.lines(path), start=1):
            try:
                row = json.loads(line)
                if row["kind"] == "epoch":
                    progress = parse_progress(row)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                text = f"{path}: skipped line {number}, which is broken ({type(error).__name__}: {error})"
                warnings.warn(text, RuntimeWarning, stacklevel=3)
        return progress

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        self._file.append(json.dumps({"kind": kind, "step": step, **values}) + "\n")

    def _write_params(self, params: Mapping[str, Any]) -> None:
        self._file.append(json.dumps({"kind": "params", "step": 0, **params}) + "\n")

    def _move(self, path: Path) -> None:
        super()._move(path)
        self._file.move(path)

    def _drop_after(self, step: int) -> None:
        def is_kept(line: str) -> bool:
            try:
                return bool(json.loads(line)["step"] <= step)
            except (ValueError, TypeError, KeyError, RecursionError):
                return False

        self._file.drop_after_last(is_kept)

    def _close(self) -> None:
        self._file.close()

    def _measure_files(self) -> dict[str, Extent]:
        return {"json_lines": self._file.extent()}

    def _file_at(self, place: Path, name: str) -> Path | None:
        return place if name == "json_lines" else None
