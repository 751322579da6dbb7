"""Log to one file of JSON lines, the log that `resume_from_log` and pictures read back, as rows or as columns."""

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rltrainer.errors import CheckpointError, readable
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import open_regular, read_errors, read_lines
from rltrainer.loggers.file_logger import LineLogger, NumberedPath
from rltrainer.loggers.log_state import PROGRESS_NAMES, LoggedEpoch, LoggerState, LogPosition, ProgressRow
from rltrainer.loggers.logger import Kind, Row
from rltrainer.state.codec import from_state
from rltrainer.validation.field_rules import is_int

# The rows of one kind: `step` [R] as int64, and each number by its name [R] as float64, NaN where a row has none.
Columns: TypeAlias = dict[str, np.ndarray[Any, np.dtype[Any]]]

# Columns hold an entry per row and name. A small hostile log with a new name in each row would fill the memory.
FREE_NUM_ENTRIES, MAX_ENTRIES_PER_NUMBER = 10_000_000, 100


class JSONLinesLogger(LineLogger):
    """Writes one JSON object per row: `{"kind": "training", "step": 2048, "training/return": 23.5}`.

    NaN is `NaN`, as Python and pandas read and write it. Read it with `pandas.read_json(path, lines=True)`.
    The first row, of the kind `params`, holds the params of trainer and algorithm.

    If the path exists when a run starts, the run takes `log-2.jsonl` and so on.
    """

    header = b'{"kind": '

    def _counters_file(self) -> None:
        """Return None: the rows of epochs hold the counters."""

    def _find_epoch(self) -> LoggedEpoch | None:
        path = self._current()
        found, end = None, 0
        if not path.is_file():
            return None
        for number, (row, end) in enumerate(_rows(path), start=1):
            if row is not None and row.kind == "epoch":
                values = {name: row.values[name] for name in PROGRESS_NAMES if name in row.values}
                found = from_state(ProgressRow, values, f"{path}, line {number}: epoch"), row.step, end
        if path.stat().st_size > end:
            warnings.warn(f"{path}: the last line is truncated and was skipped", RuntimeWarning, stacklevel=3)
        if found is None:
            return None
        progress, step, end = found
        state = LoggerState(type(self).__name__, step, has_log=True, has_params=True, log=path.name)
        state.files["log"] = LogPosition.of(path, end)
        return LoggedEpoch(progress, state)

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        self._append((json.dumps({"kind": kind, "step": step, **values}) + "\n").encode())

    def _write_params(self, params: Mapping[str, Any]) -> None:
        self._append((json.dumps({"kind": "params", "step": 0, **params}) + "\n").encode())


class LogRow(NamedTuple):
    """A row: its kind ("training", "test", "update", "epoch", or your own), its step, and its numbers by name."""

    kind: str
    step: int
    values: dict[str, float | None]


def read_log(folder: Path) -> list[LogRow]:
    """Return the complete rows, in order, of the newest JSON lines in a folder of logs; none from an empty folder.

    Raises:
        CheckpointError: the log cannot be read, or a line is no row, or there are other logs only; the text names it.
    """
    path = NumberedPath(folder / "log.jsonl", ".jsonl").newest(Path.is_file)
    if path.is_file():
        return [row for row, _ in _rows(path) if row is not None]
    if names := sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []:
        hint = "Log JSON lines too, as RunFolder(folder).logger(...) does, or rl.JSONLinesLogger beside your logger."
        text = f"{path}: expected JSON lines, the log that is read back; found {', '.join(names)}"
        raise CheckpointError(f"{text}. {hint}")
    return []


def columns(rows: list[LogRow], kind: str) -> Columns:
    """Return the rows of one kind as columns, without rows `step` alone; a `CheckpointError` if most would be empty."""
    rows = [row for row in rows if row.kind == kind]
    names = dict.fromkeys(name for row in rows for name in row.values)
    if len(names) * len(rows) > max(FREE_NUM_ENTRIES, MAX_ENTRIES_PER_NUMBER * sum(len(row.values) for row in rows)):
        text = f"{len(names):,} names in {len(rows):,} rows, of which hardly one has two"
        raise CheckpointError(f"a log of kind {readable(kind)}: expected rows that share names, found {text}")
    found: Columns = {"step": np.array([row.step for row in rows], np.int64)}
    # As float64, None becomes NaN.
    return found | {name: np.array([row.values.get(name) for row in rows], np.float64) for name in names}


def _rows(path: Path) -> Iterator[tuple[LogRow | None, int]]:
    """Yield the whole rows of a log, None for the row of params, each with the position after it."""
    end = 0
    with read_errors(path, CheckpointError), open_regular(path) as file:
        for number, line in enumerate(read_lines(file), start=1):
            end += len(line)
            if line.endswith(b"\n"):
                yield _row(line[:-1].decode(errors="replace"), f"{path}, line {number}"), end


def _row(line: str, where: str) -> LogRow | None:
    try:
        row: Any = read_json(line, allows_nan=True)
    except ValueError as error:
        raise CheckpointError(f"{where}: expected a row in JSON, found {readable(line)}") from error
    match row:
        case {"kind": "params"}:
            return None
        case {"kind": str(kind), "step": int(step), **numbers} if all(
            value is None or isinstance(value, float) or (is_int(value) and abs(value) < 2**63)
            for value in (step, *numbers.values())
        ):
            # Interned: a log repeats a few names in millions of rows, and pictures hold all of them.
            values: Any = {sys.intern(str(name).removeprefix(f"{kind}/")): value for name, value in numbers.items()}
            return LogRow(sys.intern(kind), step, values)
    raise CheckpointError(f"{where}: expected a row of kind, step and numbers, found {readable(line)}")
