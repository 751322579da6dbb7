"""Log to one CSV file in long format, so that new names need no new columns."""

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


class CSVLogger(FileLogger):
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

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        self._file = LineFile(type(self).__name__, path, header="step,name,value\n")
        super().__init__(RunPath(self._file.path, self._file.path.suffix, self._file.is_log, _params_file), **options)

    def _read_progress(self, path: Path) -> Progress | None:
        """Return what the last intact `log_epoch` wrote, or None; incomplete ones are skipped with a warning."""
        epochs: list[dict[str, object]] = []
        for line in self._file.lines(path):
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
                warnings.warn(f"{path}: skipped an incomplete epoch ({error})", RuntimeWarning, stacklevel=3)
        return None

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        lines = (f"{step},{_quoted(name)},{'' if value is None else repr(value)}\n" for name, value in values.items())
        self._file.append("".join(lines))

    def _write_params(self, params: Mapping[str, Any]) -> None:
        path = _params_file(self._file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x") as file:  # never over a file that is not ours
            file.write(json.dumps(params, indent=2) + "\n")

    def _move(self, path: Path) -> None:
        super()._move(path)
        self._file.move(path)

    def _drop_after(self, step: int) -> None:
        def is_kept(line: str) -> bool:
            found = line.partition(",")[0]
            return found == "step" or (found.isdecimal() and int(found) <= step)

        self._file.drop_after_last(is_kept)

    def _close(self) -> None:
        self._file.close()

    def _measure_files(self) -> dict[str, Extent]:
        return {"csv": self._file.extent()}

    def _file_at(self, place: Path, name: str) -> Path | None:
        return place if name == "csv" else None


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
