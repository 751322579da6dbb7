"""Log to one file of JSON lines."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltrainer.json_text import read_json
from rltrainer.loggers.file_logger import Epochs
from rltrainer.loggers.line_logger import LineLogger
from rltrainer.loggers.logger import Kind, Row


class JSONLinesLogger(LineLogger):
    """Write one JSON object per row: `{"kind": "training", "step": 2048, "training/return": 23.5}`.

    NaN is written as `NaN`, as Python and pandas read and write it. Read it with `pandas.read_json(path, lines=True)`.
    The first row, of the kind `params`, holds what trainer and algorithm were told.

    Args:
        path: the file; its folder is made. If it is there when a run begins, the run takes `log-2.jsonl` and so on.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        ParamsError: the path is a folder or a file that is no such log, or an option breaks its rule.
    """

    name_in_state = "json_lines"
    header = b'{"kind": '

    def _epochs(self, path: Path) -> Epochs:
        for number, line in enumerate(self._lines(path), start=1):
            yield f"line {number}", line

    def _step_of(self, line: str) -> int | float | None:
        try:
            step = read_json(line, allows_nan=True)["step"]
        except (ValueError, TypeError, KeyError):
            return None
        return step if isinstance(step, int | float) else None

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        self._append((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())

    def _write_params(self, params: Mapping[str, Any]) -> None:
        self._append((json.dumps({"kind": "params", "step": 0, **params}) + "\n").encode())
