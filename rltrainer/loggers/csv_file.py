"""Log to one CSV file in long format, so that new names need no new columns."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltrainer.loggers.file_logger import Epochs
from rltrainer.loggers.line_logger import LineLogger
from rltrainer.loggers.logger import Kind, Row


class CSVLogger(LineLogger):
    """Write one line per number: `step,name,value`, such as `2048,training/return,23.5`.

    NaN is `nan`, None is empty. Read it with
    `pandas.read_csv(path).pivot(index="step", columns="name", values="value")`. The params of the run are in a file
    beside it, `log.csv.params.json` for `log.csv`.

    Args:
        path: the file; its folder is made. If a run has used it, `log-2.csv` and so on.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        ParamsError: the path is a folder or a file that is no such log, or an option breaks its rule.
    """

    name_in_state = "csv"
    header = b"step,name,value\n"

    def _epochs(self, path: Path) -> Epochs:
        epochs: list[dict[str, object]] = []
        for line in self._lines(path):
            if ",epoch/" not in line:
                continue
            _, name, value = [*line.split(","), "", ""][:3]
            if name == "epoch/epoch" or not epochs:
                epochs.append({})
            epochs[-1][name] = _parse(value)
        for row in epochs:
            yield "an incomplete epoch", row

    def _step_of(self, line: str) -> int | None:
        step = line.partition(",")[0]
        if step == "step":  # the header stays whatever the step
            return 0
        return int(step) if step.isdecimal() else None

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


def _parse(value: str) -> object:
    """Return the number in a field of an epoch row, None for an empty field, the text itself if it is broken."""
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value or None
