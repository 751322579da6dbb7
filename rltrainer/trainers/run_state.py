"""What a run remembers, and whether a checkpoint belongs to the run that wants to continue it."""

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from rltrainer.algorithms import Algorithm
from rltrainer.errors import CheckpointError, ParamsError, ReplayBufferError, stable_repr
from rltrainer.field_rules import NonNegativeInt
from rltrainer.params import Params
from rltrainer.plan import RuntimeParams
from rltrainer.trainers.epoch_record import EpochRecord
from rltrainer.trainers.run_log import LastEpisodes
from rltrainer.trainers.run_stats import Best, EpochStats, Timing
from rltrainer.typed_state import from_state
from rltrainer.types import Load, State

MAY_DIFFER = ("max_epochs", "verbose", "show_progress", "resume_from_log")
"""Fields that do not change what is learned; callbacks and live objects are not compared either."""


def plain_fields(params: Params, algorithm: Algorithm) -> State:
    """Return the settings that must not change on a resume, of the trainer and of its algorithm."""
    settings = _fields(params)
    algorithm_params = getattr(algorithm, "params", None)
    return settings | (_fields(algorithm_params) if isinstance(algorithm_params, Params) else {})


def check_same_run(path: str | Path, saved: State, current: State) -> None:
    """Compare a checkpoint's settings with the current ones; those that its version did not have yet are not compared.

    Raises:
        CheckpointError: a setting differs; the text names it.
    """
    for name in sorted(saved):
        if saved.get(name) != current.get(name):
            text = f"{path}: {name} was {saved.get(name)!r} when it was saved and is {current.get(name)!r} now"
            raise CheckpointError(f"{text}. A resumed run keeps its settings; only {', '.join(MAY_DIFFER)} may change.")


@dataclasses.dataclass
class Counters:
    """How far a run has come."""

    epoch: NonNegativeInt
    env_step: NonNegativeInt
    update_step: NonNegativeInt
    gradient_step: NonNegativeInt


@dataclasses.dataclass(kw_only=True)
class RunState:
    """What a run remembers beside its parts.

    Args:
        params: its settings, by `plain_fields`.
        counters: how far it has come.
        best: its best test step.
        stop_reason: why it ended; None before.
        runtime: what its `RuntimeParams` came to.
        timing: seconds.
        epochs: the epochs that are done.
        record: the epoch that is under way.
        log: what its log tells of training.
    """

    params: dict[str, Any]
    counters: Counters
    best: Best
    stop_reason: str | None
    runtime: dict[str, Any]
    timing: Timing
    epochs: list[EpochStats]
    record: EpochRecord | None
    log: LastEpisodes = dataclasses.field(default_factory=LastEpisodes)

    @property
    def has_begun(self) -> bool:
        """Whether a first epoch has; up to the initial test step a run continues by beginning."""
        return self.counters.epoch > 0

    @property
    def runtime_params(self) -> RuntimeParams:
        """The runtime as params."""
        return RuntimeParams(**self.runtime)

    def problem(self) -> str | None:
        """Return what is wrong with a state that was read from a file, or None."""
        if self.record is not None and self.record.epoch != self.counters.epoch:
            return f"record.epoch: expected {self.counters.epoch}, as counters.epoch, found {self.record.epoch}"
        try:
            self.runtime_params  # noqa: B018  # its rules are checked when it is made
        except (ParamsError, TypeError) as error:
            return f"runtime: {error}"
        return None


TRunState = TypeVar("TRunState", bound=RunState)


def check_all(
    path: str | Path, states: dict[str, State], parts: dict[str, Any], run_state: type[TRunState], settings: State
) -> tuple[TRunState, list[Load]]:
    """Check all that a checkpoint holds against a trainer, before anything of it changes.

    Args:
        path: the checkpoint, for error texts.
        states: what was read.
        parts: the trainer's objects with a state of their own.
        run_state: what the trainer itself remembers.
        settings: the trainer's `plain_fields`.

    Returns:
        what the run remembers, and what loads the parts.

    Raises:
        CheckpointError: a part is missing, a value is not what it must be, or a setting differs; the text names it.
    """
    # A logger may be added or left out on a resume.
    if set(states) - {"logger"} != {*parts, "trainer"} - {"logger"}:
        raise CheckpointError(f"{path}: expected the parts {sorted({*parts, 'trainer'})}, found {sorted(states)}")
    try:
        run = from_state(run_state, states["trainer"], "trainer")
        check_same_run(path, run.params, settings)
        # The log last, as its rows are all that would be lost. A run that had not begun begins with a log of its own.
        names = parts.keys() & states.keys() - (set() if run.has_begun else {"logger"})
        return run, [parts[name].prepare_load(states[name]) for name in sorted(names, key=lambda n: (n == "logger", n))]
    except (CheckpointError, ReplayBufferError) as error:
        text = str(error)
        raise CheckpointError(text if text.startswith(str(path)) else f"{path}: {text}") from error


def _fields(params: Params) -> State:
    values: dict[str, Any] = json.loads(params.to_json())["fields"]
    compared = {field.name for field in dataclasses.fields(params) if field.compare} - set(MAY_DIFFER)
    for name in compared:
        value = getattr(params, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, Params):
            # A schedule: of a user's JSON has only the name, but its numbers matter too; of ours, files hold this text.
            values[name] = stable_repr(value)
    return {f"{type(params).__name__}.{name}": values[name] for name in values if name in compared}
