"""A run in a checkpoint: written with its settings; read, and checked as a whole against the run that goes on."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from rltrainer.algorithms import Algorithm
from rltrainer.checkpoint import write_checkpoint
from rltrainer.checkpoint.directory import read_logged
from rltrainer.checkpoint.store import live_state
from rltrainer.errors import CheckpointError, ReplayBufferError, readable, stable_repr
from rltrainer.hooks import HookRunner
from rltrainer.hooks.hook_runner import NO_HOOKS
from rltrainer.plan import RuntimeParams
from rltrainer.state.global_random import GlobalRandom
from rltrainer.state.params import Params
from rltrainer.state.typed_state import from_state, to_state
from rltrainer.trainers.run_state import SIGNAL, RunState
from rltrainer.trainers.trainer_params import TrainerParams
from rltrainer.types import Load, State

MAY_DIFFER = ("max_epochs", "verbose", "show_progress", "resume_from_log", "checkpoint")
"""Fields that do not change what is learned; callbacks and live objects are not compared either."""

RUNTIME_MAY_DIFFER = ("detect_anomaly", "profiler")
"""The same of `RuntimeParams`: a run that failed is restored and looked at more closely."""

TRunState = TypeVar("TRunState", bound=RunState)


def write_run(
    path: str | Path, state: RunState, params: TrainerParams, algorithm: Algorithm, overwrite: bool = False
) -> None:
    """Write a checkpoint of a run; see `write_checkpoint`."""
    write_checkpoint(path, run_parts(state, params, algorithm, lambda part: dict(part.state_dict())), overwrite)


def run_parts(
    state: RunState, params: TrainerParams, algorithm: Algorithm, state_of: Callable[[Any], State] = live_state
) -> dict[str, State]:
    """Return the state of each part of a run, as `state_of` returns it, and that of the run itself."""
    state.params, state.global_random = _settings(params, algorithm), GlobalRandom.of_now()
    parts = {name: state_of(part) for name, part in {"algorithm": algorithm, **params.parts()}.items()}
    return parts | {"trainer": to_state(state)}


def read_run(
    path: str | Path, cls: type[TRunState], params: TrainerParams, algorithm: Algorithm
) -> tuple[TRunState, list[Load]]:
    """Return the state of a saved run, and what loads its parts: all is checked before anything changes.

    Raises:
        CheckpointError: a part is missing, a value is not what it must be, or a setting differs; the text names it.
    """
    states = read_logged(path, mapped=("buffer",))
    parts = {"algorithm": algorithm, **params.parts(), "hooks": HookRunner(type(params).__name__, params.hooks)}
    states.setdefault("hooks", NO_HOOKS)
    # A logger may be added or left out on a resume, and so may hooks, as far as they only read.
    if set(states) - {"logger"} != {*parts, "trainer"} - {"logger"}:
        raise CheckpointError(f"{path}: expected the parts {sorted({*parts, 'trainer'})}, found {sorted(states)}")
    try:
        state = from_state(cls, states["trainer"], "trainer")
        _check_same_settings(state.params, _settings(params, algorithm))
        _check_runtime(state.runtime, params.runtime)
        # Hooks first, whose code is the user's and may raise; the log last, as its rows are all that would be lost.
        # A run that had not begun begins with a log of its own.
        names = parts.keys() & states.keys() - (set() if state.has_begun else {"logger"})
        loads = [parts[name].prepare_load(states[name]) for name in sorted(names, key=_turn)]
    except (CheckpointError, ReplayBufferError) as error:
        text = str(error)
        raise CheckpointError(text if text.startswith(str(path)) else f"{path}: {text}") from error
    if state.stop_reason == SIGNAL:
        state.stop_reason = None
    if algorithm.device.type != "cuda":  # the run may have moved; a CUDA graph changes no number
        state.runtime = dataclasses.replace(state.runtime, cuda_graph=params.runtime.cuda_graph)
    return state, loads


def _turn(name: str) -> tuple[int, str]:
    return {"hooks": 0, "logger": 2}.get(name, 1), name


def _settings(params: TrainerParams, algorithm: Algorithm) -> State:
    """Return the settings that must not change on a resume, of the trainer and of its algorithm."""
    return _fields(params) | _fields(algorithm.params)


def _is_same(saved: Any, current: Any) -> bool:
    """Return whether a setting is what it was; fields of groups that the checkpoint's version had not are left out."""
    if isinstance(saved, dict) and isinstance(current, dict):
        return all(name in current and _is_same(value, current[name]) for name, value in saved.items())
    if isinstance(saved, list) and isinstance(current, list):
        return len(saved) == len(current) and all(map(_is_same, saved, current))
    return not isinstance(saved, Tensor) and bool(saved == current)


def _check_same_settings(saved: State, current: State) -> None:
    """Compare a checkpoint's settings with the current ones; those that its version did not have yet are left out."""
    for name in sorted(saved):
        if not _is_same(saved[name], current.get(name)):
            text = f"{name} was {readable(saved.get(name))} when it was saved and is {current.get(name)!r} now"
            raise CheckpointError(f"{text}. A resumed run keeps its settings; only {', '.join(MAY_DIFFER)} may change.")


def _check_runtime(found: RuntimeParams, told: RuntimeParams) -> None:
    """Check that only what is left to "auto" is taken from a checkpoint."""
    for name in ("compile", "num_threads", "matrix_library", "deterministic"):
        expected, value = getattr(told, name), getattr(found, name)
        if expected != "auto" and value not in (expected, "auto") and not told.detect_anomaly:
            raise CheckpointError(
                f"trainer.runtime.{name}: expected {expected!r}, as RuntimeParams say, found {value!r}"
            )


def _fields(params: Params) -> State:
    values: dict[str, Any] = params.to_plain()["fields"]
    compared = {field.name for field in dataclasses.fields(params) if field.compare} - set(MAY_DIFFER)
    for name in compared:
        value = getattr(params, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, Params):
            # A schedule: of a user's JSON has only the name, but its numbers matter too; of ours, files hold this text.
            values[name] = stable_repr(value)
    runtime = values.get("runtime", {"fields": {}})["fields"]
    for name in RUNTIME_MAY_DIFFER:
        runtime.pop(name, None)
    return {f"{type(params).__name__}.{name}": values[name] for name in values if name in compared}
