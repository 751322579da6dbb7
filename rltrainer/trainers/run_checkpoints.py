"""The checkpoints of a run: their contents, when they are saved, and how they are read."""

import dataclasses
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

from torch import Tensor

from rltrainer.algorithms import Algorithm
from rltrainer.checkpoint import CheckpointParams, CheckpointStore
from rltrainer.checkpoint.folder import Checkpoint, KnownFiles, on_first, open_checkpoint
from rltrainer.checkpoint.store import checkpoints_in, live_state
from rltrainer.collect.data_source import EpisodeWriter
from rltrainer.errors import CheckpointError, RankLostError, ReplayBufferError, at_the_end, readable, without_addresses
from rltrainer.hooks import HookRunner
from rltrainer.hooks.hook_runner import HooksState
from rltrainer.interval import as_every
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.state.codec import from_state, to_state
from rltrainer.state.global_random import GlobalRandom
from rltrainer.state.params import Params
from rltrainer.trainers.run_state import SIGNAL, RunState, StepUnit
from rltrainer.trainers.trainer_params import TrainerParams
from rltrainer.types import Load, State

# Fields that do not change the learning; callbacks and live objects are not compared either.
MAY_DIFFER = ("max_epochs", "verbose", "show_progress", "resume_from_log", "checkpoint")
# The same of `RuntimeParams`: a run that failed is restored and looked at more closely.
RUNTIME_MAY_DIFFER = ("detect_anomaly", "profiler", "parallel")

T = TypeVar("T")
TRunState = TypeVar("TRunState", bound=RunState)


def run_parts(
    state: RunState,
    params: TrainerParams,
    algorithm: Algorithm,
    ranks: Ranks,
    state_of: Callable[[Any], State] = live_state,
) -> dict[str, State]:
    """Return the state of each part of a run, as `state_of` returns it, and the state of the run itself.

    A `RanksDifferError` if networks differ between ranks.
    """
    algorithm.require_equal_ranks()
    state.params = settings_of(params, algorithm)
    # The first shard saves the streams of its process. A process that takes over a later shard keeps its own streams.
    state.global_random = GlobalRandom.of_now() if ranks.is_first_here else None
    parts = {name: state_of(part) for name, part in {"algorithm": algorithm, **params.parts()}.items()}
    return parts | {"trainer": state.to_state()}


def read_run(
    path: Path, states: dict[str, State], cls: type[TRunState], params: TrainerParams, algorithm: Algorithm
) -> tuple[TRunState, list[Load]]:
    """Return the state of a saved run, and functions that load its parts: all is checked before anything changes.

    Args:
        path: of the checkpoint, for error texts.
        states: the states that it holds.
        cls: of the run's state.
        params, algorithm: of the run that continues.

    Raises:
        CheckpointError: a state is of another run, or damaged.
    """
    parts = {"algorithm": algorithm, **params.parts(), "hooks": HookRunner(type(params).__name__, params.hooks)}
    states.setdefault("hooks", to_state(HooksState()))
    # A logger may be added or left out on a resume, and so may hooks, as far as they only read.
    if set(states) - {"logger"} != {*parts, "trainer"} - {"logger"}:
        raise CheckpointError(f"{path}: expected the parts {sorted({*parts, 'trainer'})}, found {sorted(states)}")
    try:
        state = from_state(cls, states["trainer"], "trainer")
        _check_settings(state, params, algorithm)
        # Hooks load first: their code is the user's and may raise. The log loads last: it alone would lose rows.
        # A run that had not started starts a log of its own.
        names = parts.keys() & states.keys() - (set() if state.has_begun else {"logger"})
        turns = {"hooks": 0, "logger": 2}
        ordered = sorted(names, key=lambda name: (turns.get(name, 1), name))
        loads = [parts[name].prepare_load(states[name]) for name in ordered]
    except (CheckpointError, ReplayBufferError) as error:
        text = str(error)
        raise CheckpointError(text if text.startswith(str(path)) else f"{path}: {text}") from error
    state.phase = "restored" if state.has_begun else "new"
    if state.stop_reason == SIGNAL:
        state.stop_reason = None
    # It is chosen again: the run may have moved to another device, and a CUDA graph changes no number.
    state.runtime = dataclasses.replace(state.runtime, cuda_graph=params.runtime.cuda_graph)
    return state, loads


def settings_of(trainer_params: TrainerParams, algorithm: Algorithm) -> State:
    """Return the settings that must not change on a resume, of the trainer and of its algorithm."""
    settings: dict[str, Any] = {}
    for params in (trainer_params, *(each.params for each in algorithm.all_algorithms())):
        values: dict[str, Any] = params.to_plain()["fields"]
        for name in {field.name for field in dataclasses.fields(params) if field.compare} - set(MAY_DIFFER):
            value = getattr(params, name)
            # A schedule: JSON has only the name of a user's own, but its numbers matter too.
            is_schedule = dataclasses.is_dataclass(value) and not isinstance(value, Params)
            setting = without_addresses(repr(value)) if is_schedule else values[name]
            settings[f"{type(params).__name__}.{name}"] = setting
    runtime = settings[f"{type(trainer_params).__name__}.runtime"]["fields"]
    for name in RUNTIME_MAY_DIFFER:
        runtime.pop(name)
    return settings


def _is_same(saved: Any, current: Any) -> bool:
    # Compare a saved setting with the current one, as far as the version that saved it had the same fields.
    if isinstance(saved, dict) and isinstance(current, dict):
        return all(name in current and _is_same(value, current[name]) for name, value in saved.items())
    if isinstance(saved, list) and isinstance(current, list):
        return len(saved) == len(current) and all(map(_is_same, saved, current))
    return not isinstance(saved, Tensor) and bool(saved == current)


def _check_settings(state: RunState, params: TrainerParams, algorithm: Algorithm) -> None:
    current = settings_of(params, algorithm)
    for name, saved in sorted(state.params.items()):
        if not _is_same(saved, current.get(name)):
            text = f"{name} was {readable(saved)} when it was saved and is {current.get(name)!r} now"
            raise CheckpointError(f"{text}. A resumed run keeps its settings; only {', '.join(MAY_DIFFER)} may change.")
    # A checkpoint decides only the settings of the runtime that are "auto".
    for name in ("compile", "loop", "num_threads", "matrix_library", "deterministic"):
        expected, found = getattr(params.runtime, name), getattr(state.runtime, name)
        if expected != "auto" and found not in (expected, "auto") and not params.runtime.detect_anomaly:
            text = f"expected {expected!r}, as RuntimeParams say, found {found!r}"
            raise CheckpointError(f"trainer.runtime.{name}: {text}")


class RunCheckpoints:
    """Saves a run as `TrainerParams.checkpoint` says; without it, does nothing.

    Its context is open while anything trains: it holds the directory and the signals.
    """

    def __init__(
        self, params: TrainerParams, algorithm: Algorithm, unit: StepUnit, ranks: Ranks, known: KnownFiles
    ) -> None:
        self.is_on = params.checkpoint is not None
        self._params = chosen = params.checkpoint or CheckpointParams("unused", resume="never")
        self._parts_of = partial(run_parts, params=params, algorithm=algorithm, ranks=ranks)
        self._unit, self._every = unit, as_every(type(chosen).__name__, chosen.every)
        self._ranks, self._known = ranks, known
        self._store = CheckpointStore(chosen.folder, chosen.keep_last, chosen.keep_best, self._ranks, known)
        self._signals, self._num_entered = RunSignals(self._ranks), 0
        self._stopped_by, self._wants_save = 0, False  # as all ranks know it
        self._source = params.collectors().get("training_collector") if chosen.record_episodes else None
        self._episodes: EpisodeWriter | None = None

    def follow(self, state: RunState) -> None:
        """Save this state from now on; intervals count from here."""
        self._state, self._ended_step = state, state.training_step
        self._since = self._position()

    def __enter__(self) -> None:
        if self.is_on and self._num_entered == 0:
            with ExitStack() as opened:
                if self._params.signals:
                    opened.enter_context(self._signals)
                self._store.open()
                opened.enter_context(at_the_end(self._store.close))
                if self._source is not None:
                    name = f"episodes_of_shard{self._ranks.rank}" if self._ranks.rank else "episodes"
                    self._episodes = self._source.record_episodes(Path(self._params.folder) / name)
                    opened.enter_context(at_the_end(partial(self._attempt, self._episodes.close)))
                self._opened = opened.pop_all()
        self._num_entered += 1

    def __exit__(self, *exception: Any) -> bool | None:
        self._num_entered -= 1
        return self._opened.__exit__(*exception) if self.is_on and self._num_entered == 0 else None

    def resume(self, restore: Callable[[Checkpoint], None]) -> None:
        """Restore the checkpoint that the params name, if any; a `CheckpointError` if it cannot be used.

        The global random numbers are restored with it.
        """
        checkpoint: Checkpoint | None = None
        match self._params.resume:
            case "auto":
                checkpoint = self._store.open_newest()
            case "never":
                self.require_empty()
            case path:
                on_first(self._ranks, partial(self._warn_of_newer, path))
                checkpoint = open_checkpoint(path, self._ranks, self._known)
        if checkpoint is not None:
            restore(checkpoint)
            if self._state.global_random is not None and self._ranks.is_first_here:
                self._state.global_random.restore()

    def _warn_of_newer(self, path: str | os.PathLike[str]) -> None:
        found = [each.path for each in checkpoints_in(self._store.folder, self._known) if each.manifest is not None]
        if found and found[0] != Path(os.path.abspath(path)):
            text = f"the run goes back to {path}, though {found[0]} was saved later"
            hint = 'resume="auto" continues from that; a branch takes a folder of its own.'
            warnings.warn(f"CheckpointParams.resume: {text}. {hint}", RuntimeWarning, stacklevel=8)

    def require_empty(self) -> None:
        """Raise a `CheckpointError` if there are checkpoints: a new run would mix with them."""
        if self.is_on and (found := checkpoints_in(self._store.folder, self._known)):
            text = f"it holds checkpoints, the newest is {found[0].path.name}, and a new run would mix with them"
            hint = 'resume="auto" continues from there; a new run takes a folder of its own, as RunFolder.new makes.'
            raise CheckpointError(f"CheckpointParams.folder {self._params.folder!r}: {text}. {hint}")

    def end_training_step(self, is_last: bool) -> None:
        """Stop on a signal, save if that is due; the last step of an epoch is saved with its test step."""
        self._ended_step = self._state.training_step
        self.agree()
        if self._stopped_by and self._state.stop_reason is None:  # else the epoch ends at once
            self._stop()
        if self.is_on and not is_last and self._is_due():
            self._save()

    def break_off(self, test: Callable[[], T]) -> T:
        """Run a test step; a signal between training steps breaks it off, and the run is saved as it was before."""
        signals = self._signals
        if self._state.training_step > self._ended_step or self._ranks.world > 1:  # which stop together, afterwards
            return test()
        if signals.stopped_by:
            self._stop()
        signals.breaks_off = True
        try:
            result = test()
            signals.breaks_off = False  # Python handles no signal between these two lines
        except (KeyboardInterrupt, SystemExit):
            if signals.num_stops == 1:
                self._save_stopped()
            raise
        finally:
            signals.breaks_off = False
        return result

    def end_epoch(self, score: float | None, is_last: bool) -> None:
        """Stop on a signal; save if that is due, if the test step was the best so far, or if the run is over."""
        if self._stopped_by:
            self._stop(score)
        is_best = self._params.keep_best > 0 and self._state.best.epoch == self._state.counters.epoch
        if self.is_on and (self._is_due() or is_best or is_last):
            self._save(score)

    def agree(self) -> None:
        """Act on signals, and on hooks' requests to stop, that have reached any rank, from now on."""
        signals, state = self._signals, self._state
        own, signals.wants_save = [signals.stopped_by, signals.wants_save, state.stop_request is not None], False
        stopped_by, wants_save, is_requested = self._ranks.largest(own)
        if stopped_by:
            signals.stopped_by = stopped_by
        if is_requested:
            state.stop_request = next(filter(None, self._ranks.from_all(state.stop_request)))
        self._stopped_by, self._wants_save = stopped_by, self._wants_save or bool(wants_save)

    def _is_due(self) -> bool:
        before, self._since = self._since, self._position()
        wants_save, self._wants_save = self._wants_save, False
        is_due = wants_save or self._every.crossed(before, self._since)
        return bool(self._ranks.from_first(is_due)) if self._every.unit == "second" else is_due

    def _position(self) -> float:
        state, unit = self._state, self._every.unit
        if unit == "second":
            return time.monotonic()
        if unit == "epoch":
            return state.counters.epoch - (state.record is not None)
        return state.training_step if unit == "training_step" else getattr(state.counters, unit)

    def _stop(self, score: float | None = None) -> NoReturn:
        """Save the run, and end it as the signal says."""
        self._save_stopped(score)
        raise self._signals.end()

    def _save_stopped(self, score: float | None = None) -> None:
        state, before = self._state, self._state.stop_reason
        state.stop_reason = before or SIGNAL
        try:
            self._save(score)
        finally:
            state.stop_reason = before  # a caller that catches the exception may continue the run
        text = "signal %d: the run was saved to %s, and can be continued from there"
        logging.getLogger("rltrainer").info(text, self._signals.stopped_by, self._params.folder)

    def _save(self, score: float | None = None) -> None:
        step = getattr(self._state.counters, self._unit)
        if self._episodes is not None:
            self._attempt(self._episodes.flush)
        self._attempt(self._store.save, self._parts_of(self._state), step, score)

    def _attempt(self, act: Callable[..., None], *args: Any) -> None:
        # If the write fails, raise or warn as the params say.
        try:
            act(*args)
        except CheckpointError as error:
            if self._params.on_save_error == "raise":
                raise
            text = 'The run continues: CheckpointParams.on_save_error is "warn".'
            warnings.warn(f"{error} {text}", RuntimeWarning, stacklevel=4)


STOPS = (signal.SIGTERM, signal.SIGINT)
SAVE = getattr(signal, "SIGUSR1", None)  # not on Windows


class RunSignals:
    """Handles SIGTERM, SIGINT and SIGUSR1 inside its context; in the main thread, as Python handles none elsewhere.

    `stopped_by` is the last signal that asked for the end, `num_stops` how many have; `wants_save` is set by SIGUSR1.
    With `breaks_off` the first signal raises at once, as a second one does in any case; so does a SIGTERM that torchrun
    sends because another rank has failed: the error names that.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks
        self.stopped_by = self.num_stops = 0
        self.wants_save = self.breaks_off = False
        self._process = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.wants_save, self._process = False, os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in (*STOPS, *([] if SAVE is None else [SAVE])):
                # None is a handler of C code, which could not be restored. A program that ignores a signal keeps
                # ignoring it: nohup, and shells in the background, start programs so.
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
        is_late, end = kind is None and self.num_stops > 0, self.end()
        self.stopped_by = self.num_stops = 0
        if is_late:  # it came when all was done
            raise end

    def end(self) -> BaseException:
        """Return the exception that ends the program as the signal would have."""
        return KeyboardInterrupt() if self.stopped_by == signal.SIGINT else SystemExit(128 + self.stopped_by)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork, as of a user's own worker, is no run
            signal.signal(number, self._before[number])
            os.kill(os.getpid(), number)
        elif number == SAVE:
            self.wants_save = True
        else:
            # Ranks that stop, or in which an error is on its way, end by themselves.
            may_be_lost = number == signal.SIGTERM and not self.stopped_by and sys.exception() is None
            self.stopped_by, self.num_stops = number, self.num_stops + 1
            if may_be_lost and (cause := self._ranks.cause_of_end()) is not None:
                raise RankLostError(cause)
            if self.num_stops > 1 or self.breaks_off:
                raise self.end()
