"""Log to one CSV file in long format, so that new names need no new columns."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltrainer.errors import CheckpointError
from rltrainer.loggers.file_logger import Epochs
from rltrainer.loggers.line_logger import LineLogger
from rltrainer.loggers.logger import Kind, Row
from rltrainer.loggers.progress_row import PROGRESS_NAMES


class CSVLogger(LineLogger):
    """Write one line per number: `step,name,value`, such as `2048,training/return,23.5`.

    NaN is `nan`, None is empty. Read it with
    `pandas.read_csv(path).pivot(index="step", columns="name", values="value")`. The params of the run are in a file
    beside it, `log.csv.params.json` for `log.csv`.

    Args:
        path: the file; its folder is made. If it is there when a run begins, the run takes `log-2.csv` and so on.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        ParamsError: the path is a folder or a file that is no such log, or an option breaks its rule.
    """

    name_in_state = "csv"
    header = b"step,name,value\n"

    def _epochs(self, path: Path) -> Epochs:
        row: dict[str, object] = {}
        for number, line in enumerate(self._lines(path), start=1):
            if self._step_of(line) is None:
                raise CheckpointError(f"{path}, line {number}: expected step,name,value, found {line[:100]!r}")
            _, name, value = [*line.split(","), "", ""][:3]
            if not name.startswith("epoch/"):
                continue
            if name == "epoch/epoch":
                yield from self._whole_epoch(path, row)
                row = {}
            elif name in row:
                raise CheckpointError(f"{path}, line {number}: {name} stands twice in an epoch")
            row[name] = _parse(value)
        yield from self._whole_epoch(path, row)

    def _whole_epoch(self, path: Path, row: dict[str, object]) -> Epochs:
        """Yield a row if it is whole; a kill in the middle of it leaves a part, of which a warning tells."""
        missing = [name for name in PROGRESS_NAMES if f"epoch/{name}" not in row]
        if row and missing:
            text = f"{path}: skipped an incomplete epoch (epoch/{missing[0]} is missing)"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        elif row:
            yield f"epoch {row['epoch/epoch']}", row

    def _step_of(self, line: str) -> int | None:
        step = line.partition(",")[0]
        if step == "step":  # the header stays whatever the step
            return 0
        return int(step) if step.isdecimal() and len(step) < 20 else None

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
