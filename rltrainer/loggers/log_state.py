"""The state of a log: how far its run has come, and how much of each file was written.

A checkpoint holds it. A log without JSON lines also writes it to a small file beside the log, for `resume_from_log`.
"""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rltrainer.errors import CheckpointError
from rltrainer.files.atomic_write import replaced_file
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import open_regular, read_errors, read_text
from rltrainer.functional.means import Part
from rltrainer.state.codec import from_state, to_state
from rltrainer.validation.field_rules import FiniteFloat, NonNegativeFloat, NonNegativeInt, Rule, is_int

# Counters and best score of a run, by the names of `ProgressRow`.
Progress = dict[str, int | float | None]
# Pictures read counts as float64, which is exact up to 2^53.
Count = Annotated[int, Rule("a count", lambda v: is_int(v) and 0 <= v < 2**53)]
NUM_BYTES = 1 << 16


@dataclass
class ProgressRow:
    """The row of numbers that `Logger.log_epoch` writes; a run resumes from no other values."""

    epoch: Count
    env_step: Count
    update_step: Count
    gradient_step: Count
    best_score: FiniteFloat | None
    best_return: FiniteFloat | None
    best_return_std: NonNegativeFloat | None
    best_epoch: Count | None
    is_stopped: Annotated[int, Rule("0 or 1", lambda v: v in (0, 1))]

    def problem(self) -> str | None:
        """Return the contradiction between two fields, or None."""
        if (self.best_epoch or 0) > self.epoch:
            return f"best_epoch: expected one up to {self.epoch}, found {self.best_epoch}"
        return None


PROGRESS_NAMES = tuple(each.name for each in dataclasses.fields(ProgressRow))


@dataclass
class LogPosition:
    """A position in a log file, with a digest: rows may be removed only from the file that the digest identifies."""

    # Bytes before the position.
    size: NonNegativeInt
    # SHA-256 of the first and the last of these bytes.
    digest: str
    # The file, which identifies it while it is empty.
    path: str

    @classmethod
    def of(cls, path: Path, size: int) -> "LogPosition":
        """Return the position after the first `size` bytes of a file."""
        return cls(size, _digest(path, size), os.path.abspath(path))

    def is_of(self, path: Path) -> bool:
        """Return whether a file starts with the bytes before the position."""
        if self.size == 0:
            return self.path == os.path.abspath(path)
        return path.stat().st_size >= self.size and _digest(path, self.size) == self.digest


def _digest(path: Path, size: int) -> str:
    if size == 0:
        return hashlib.sha256().hexdigest()
    # Both ends are enough to tell two logs apart, and a long log costs a checkpoint as little as a short one.
    with open(path, "rb") as file:
        data = file.read(min(size, NUM_BYTES))
        start = max(0, size - NUM_BYTES)
        file.seek(start)
        return hashlib.sha256(data + file.read(size - start)).hexdigest()


@dataclass
class LoggerState:
    """State of a logger: it counts here, and checkpoints hold it."""

    # The logger's class.
    logger: str
    # The step of the last row; -1 before.
    last_step: int = -1
    # The position of the last row of each kind, in the unit of its interval.
    last: dict[str, NonNegativeInt] = field(default_factory=dict)
    num_dropped: NonNegativeInt = 0
    # How far each file was written; filled in when the state is saved.
    files: dict[str, LogPosition] = field(default_factory=dict)
    gathered: dict[str, list[Part]] = field(default_factory=dict)
    # Whether the run has a log of its own.
    has_log: bool = False
    # Whether the params of the run were written.
    has_params: bool = False
    # The name of the run's file or folder, or its id at a service.
    log: str | None = None
    # A `MultiLogger`'s states of its loggers; it uses no other field.
    loggers: list["LoggerState"] = field(default_factory=list)


@dataclass
class LoggedEpoch:
    """The end of the last whole epoch of a log: how far the run had come, and the state of its logger."""

    progress: ProgressRow
    state: LoggerState

    @classmethod
    def read(cls, path: Path) -> "LoggedEpoch":
        """Read the file beside a log."""
        return from_state(cls, read_json_file(path, "the counters of a run"), str(path))

    @staticmethod
    def write(path: Path, progress: Progress, state: LoggerState) -> None:
        """Write the file beside a log, in one step; like the log, the operating system flushes it later."""
        state = dataclasses.replace(state, gathered={})  # tensors: only the checkpoint holds them
        text = json.dumps({"progress": progress, "state": to_state(state)}, indent=2)
        with replaced_file(path, survives_power_loss=False) as file:
            file.write(text.encode() + b"\n")


def read_json_file(path: Path, contents: str) -> Any:
    """Return a JSON file's contents, or raise a `CheckpointError` that calls them `contents`."""
    try:
        with read_errors(path, CheckpointError), open_regular(path) as file:
            return read_json(read_text(file), allows_nan=True)
    except ValueError as error:
        raise CheckpointError(f"{path}: expected {contents}, as JSON ({error})") from error
