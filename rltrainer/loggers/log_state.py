"""The state of a log: how far its run has come, and how much of each file was written.

A checkpoint holds it. A log that is no JSON lines also leaves it in a small file beside it, for `resume_from_log`.
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
from rltrainer.files.regular_file import open_regular, read_text
from rltrainer.functional.means import Part
from rltrainer.state.typed_state import from_state
from rltrainer.types import State
from rltrainer.validation.field_rules import FiniteFloat, NonNegativeFloat, NonNegativeInt, Rule, is_int

Progress = dict[str, int | float | None]
"""Counters and best score of a run, by the names of `ProgressRow`."""
Count = Annotated[int, Rule("a count", lambda v: is_int(v) and 0 <= v < 2**53)]
"""Floats are no exact counts beyond: no run takes so many steps."""


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
        """Return what two fields contradict each other in, or None."""
        if (self.best_epoch or 0) > self.epoch:
            return f"best_epoch: expected one up to {self.epoch}, found {self.best_epoch}"
        return None


PROGRESS_NAMES = tuple(each.name for each in dataclasses.fields(ProgressRow))

NUM_BYTES = 1 << 16
"""So many at the beginning and at the end of what was written are compared: a look at a long log costs nothing."""


@dataclass
class Extent:
    """Size and digest of a log file, by which a state knows it: only of that file may the end be removed.

    Args:
        size: the bytes that were written.
        digest: SHA-256 of the first and the last of them.
        path: where it was; tells whose log it is where nothing was written yet.
    """

    size: NonNegativeInt
    digest: str
    path: str

    @classmethod
    def of(cls, path: Path, size: int) -> "Extent":
        """Measure the first bytes of a file."""
        return cls(size, _digest(path, size), os.path.abspath(path))

    def is_of(self, path: Path) -> bool:
        """Return whether a file begins with what was written."""
        if self.size == 0:
            return self.path == os.path.abspath(path)
        return path.stat().st_size >= self.size and _digest(path, self.size) == self.digest


def _digest(path: Path, size: int) -> str:
    if size == 0:
        return hashlib.sha256().hexdigest()
    with open(path, "rb") as file:
        data = file.read(min(size, NUM_BYTES))
        start = max(0, size - NUM_BYTES)
        file.seek(start)
        return hashlib.sha256(data + file.read(size - start)).hexdigest()


@dataclass
class LoggerState:
    """State of a logger, as `Logger.state_dict` returns it.

    Args:
        logger: its class.
        last_step: of the last row; -1 before.
        last: where the last row of each kind was.
        files: how far each file was written.
        place: the name of its log.
    """

    logger: str
    last_step: int
    last: dict[str, NonNegativeInt | None]
    num_dropped: NonNegativeInt
    files: dict[str, Extent]
    gathered: dict[str, list[Part]] = field(default_factory=dict)
    has_place: bool = True
    has_params: bool = True
    place: str | None = None


@dataclass
class MultiLoggerState:
    """State of several loggers, as `MultiLogger.state_dict` returns it."""

    logger: str
    loggers: list[dict[str, Any]]


def read_logger_state(state: object) -> LoggerState | MultiLoggerState:
    """Return the state of a logger; a `CheckpointError` names the field that makes it none."""
    is_multi = isinstance(state, dict) and state.get("logger") == "MultiLogger"
    return from_state(MultiLoggerState, state, "logger") if is_multi else from_state(LoggerState, state, "logger")


@dataclass
class LoggedEpoch:
    """The end of the last whole epoch of a log: how far the run had come, and the state of its logger."""

    progress: ProgressRow
    state: LoggerState

    def state_at(self, step: int) -> LoggerState:
        """Return the state that a run resumes from at this step.

        If a run was killed between two of its loggers, the log of the second ends an epoch earlier. It holds no row
        of a later step, and is not cut.
        """
        is_same = step == (self.progress.env_step or self.progress.gradient_step)
        return self.state if is_same else dataclasses.replace(self.state, files={}, last_step=step)

    @classmethod
    def read(cls, path: Path) -> "LoggedEpoch":
        """Read the file beside a log.

        Raises:
            CheckpointError: it is damaged, or holds values that no run resumes from.
        """
        return from_state(cls, read_json_file(path, "the counters of a run"), str(path))


def read_json_file(path: Path, what: str) -> Any:
    """Return the contents of a JSON file; `what` names them in error texts.

    Raises:
        CheckpointError: it cannot be read, or is no JSON.
    """
    try:
        with open_regular(path) as file:
            return read_json(read_text(file), allows_nan=True)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: expected {what}, as JSON ({error})") from error


def write_logged_epoch(path: Path, progress: Progress, state: State) -> None:
    """Write the file beside a log, in one step; like the log, it is left to the operating system to flush."""
    text = json.dumps({"progress": progress, "state": state | {"gathered": {}}}, indent=2)  # numbers, and no tensors
    with replaced_file(path, survives_power_loss=False) as file:
        file.write(text.encode() + b"\n")
