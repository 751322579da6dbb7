"""Log to one CSV file in long format, so that new names need no new columns."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltrainer.loggers.file_logger import LineLogger
from rltrainer.loggers.logger import Kind, Row


class CSVLogger(LineLogger):
    """Write one line per number: `step,name,value`, such as `2048,training/return,23.5`.

    NaN is `nan`, None is empty. Read it with
    `pandas.read_csv(path).pivot(index="step", columns="name", values="value")`. Beside `log.csv` lie the params of the
    run, `log.csv.params.json`, and the counters that `resume_from_log` reads, `log.csv.progress.json`.

    Args:
        path: the file; its folder is made. If it is there when a run begins, the run takes `log-2.csv` and so on.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        ParamsError: the path is a folder or a file that is no such log, or an option breaks its rule.
    """

    header = b"step,name,value\n"

    def _is_used(self, path: Path) -> bool:
        return super()._is_used(path) or _params_file(path).exists()

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        lines = (f"{step},{_quoted(name)},{'' if value is None else repr(value)}\n" for name, value in values.items())
        self._append("".join(lines).encode())

    def _write_params(self, params: Mapping[str, Any]) -> None:
        path = _params_file(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x") as file:  # never over a file that is not ours
            file.write(json.dumps(params, indent=2) + "\n")


def _params_file(path: Path) -> Path:
    """Return the file beside a log that holds the params: the log's own value column holds numbers only."""
    return path.with_name(f"{path.name}.params.json")


def _quoted(name: str) -> str:
    """Return a name as a CSV field; a line break in it would break the lines, so it becomes a space."""
    name = " ".join(name.splitlines())
    return '"' + name.replace('"', '""') + '"' if '"' in name or "," in name else name
