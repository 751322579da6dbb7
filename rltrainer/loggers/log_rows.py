"""Read the rows of a log back: JSON lines, CSV or TensorBoard; as they were written, or as columns."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rltrainer.errors import CheckpointError, readable
from rltrainer.json_text import read_json
from rltrainer.loggers.event_file import EVENT_FILES, events
from rltrainer.loggers.run_path import RunPath
from rltrainer.regular_file import open_regular, read_lines

Columns: TypeAlias = dict[str, np.ndarray[Any, np.dtype[Any]]]
"""The rows of one kind: `step` [R] as int64, and each number by its name [R] as float64, NaN where a row has none."""


FREE_NUM_CELLS, MAX_CELLS_PER_NUMBER = 10_000_000, 100
"""Limits of the cells of all columns: a number for any log, and a number for each value in it."""


class LogRow(NamedTuple):
    """A row: its kind ("training", "test", "update", "epoch", or one's own), its step, and its numbers by name."""

    kind: str
    step: int
    values: dict[str, float | None]


def read_log(folder: Path) -> list[LogRow]:
    """Return the rows of the newest log in a folder in their order, from the first of the kinds that is there.

    JSON lines go before CSV, and both before TensorBoard, which holds float32. A row that is being written is left out.

    Raises:
        CheckpointError: the log cannot be read, or a row is none; the text names it.
    """
    for name, read in (("log.jsonl", _json_rows), ("log.csv", _csv_rows)):
        path = RunPath(folder / name, Path(name).suffix).newest(Path.is_file)
        if path.is_file():
            return list(read(path))
    return list(_event_rows(RunPath(folder, "").newest(_has_events)))


def columns(rows: list[LogRow], kind: str) -> Columns:
    """Return the rows of one kind as columns; `step` alone, of no length, if there are none.

    Raises:
        CheckpointError: most of the columns would be empty, and take far more memory than the log.
    """
    rows = [row for row in rows if row.kind == kind]
    names = dict.fromkeys(name for row in rows for name in row.values)
    if len(names) * len(rows) > max(FREE_NUM_CELLS, MAX_CELLS_PER_NUMBER * sum(len(row.values) for row in rows)):
        text = f"{len(names):,} names in {len(rows):,} rows, of which hardly one has two"
        raise CheckpointError(f"a log of kind {readable(kind)}: expected rows that share names, found {text}")
    found: Columns = {"step": np.array([row.step for row in rows], np.int64)}
    return found | {name: np.array([_number(row.values.get(name)) for row in rows]) for name in names}


def _json_rows(path: Path) -> Iterator[LogRow]:
    for number, line in _lines(path):
        try:
            row: Any = read_json(line, allows_nan=True)
        except ValueError as error:
            raise _broken(path, number, "a row in JSON", line) from error
        match row:
            case {"kind": "params"}:
                continue
            case {"kind": str(kind), "step": int(step)} if all(_is_number(row[name]) for name in row.keys() - {"kind"}):
                of_row = {name: value for name, value in row.items() if name not in ("kind", "step")}
                values = {sys.intern(name.removeprefix(f"{kind}/")): value for name, value in of_row.items()}
                yield LogRow(sys.intern(kind), step, values)
            case _:
                raise _broken(path, number, "a row of kind, step and numbers", line)


def _csv_rows(path: Path) -> Iterator[LogRow]:
    row: LogRow | None = None
    for number, line in _lines(path):
        if number == 1:
            continue
        try:
            step, name, text = next(csv.reader([line]))
            kind, _, name = name.partition("/")
            found = LogRow(sys.intern(kind), int(step), {sys.intern(name): float(text) if text else None})
        except (ValueError, csv.Error) as error:
            raise _broken(path, number, "step,name,value", line) from error
        if row is not None and row[:2] == found[:2] and name not in row.values:
            row.values.update(found.values)
            continue
        if row is not None:
            yield row
        row = found
    if row is not None:
        yield row


def _event_rows(path: Path) -> list[LogRow]:
    found = [event for file in path.glob(f"{EVENT_FILES}*") for event in events(file)]
    rows: list[LogRow] = []
    for event in sorted(found, key=lambda event: float(event.wall_time)):
        if event.session_log.status == event.session_log.START:  # which hides later rows of earlier files
            rows = [row for row in rows if row.step < event.step]
        numbers = {each.tag: each.simple_value for each in event.summary.value if each.HasField("simple_value")}
        if numbers:
            kind = next(iter(numbers)).partition("/")[0]
            values = {sys.intern(tag.removeprefix(f"{kind}/")): value for tag, value in numbers.items()}
            rows.append(LogRow(kind, event.step, values))
    return rows


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with open_regular(path) as file:
            for number, line in enumerate(read_lines(file), start=1):
                if line.endswith(b"\n"):
                    yield number, line[:-1].decode(errors="replace")
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error


def _broken(path: Path, number: int, expected: str, line: str) -> CheckpointError:
    return CheckpointError(f"{path}, line {number}: expected {expected}, found {readable(line)}")


def _has_events(path: Path) -> bool:
    return any(path.glob(f"{EVENT_FILES}*"))


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
