"""The checkpoints of a run: saved where one is due, where the run ends, and where a signal asks for one."""

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn, Self, TypeVar

from rltrainer.algorithms import Algorithm
from rltrainer.checkpoint import CheckpointStore
from rltrainer.checkpoint.checkpoint_params import CheckpointParams
from rltrainer.checkpoint.run_directory import checkpoints_in
from rltrainer.collect.data_source import DataSource, EpisodeWriter
from rltrainer.errors import CheckpointError, at_the_end
from rltrainer.interval import as_every
from rltrainer.trainers.run_files import run_parts
from rltrainer.trainers.run_state import SIGNAL, RunState
from rltrainer.trainers.trainer_params import TrainerParams

T = TypeVar("T")
Unit = Literal["env_step", "gradient_step"]


class NoCheckpoints:
    """Points of the loop where a run can be saved; this one saves none. Its context is open while anything trains."""

    def follow(self, state: RunState) -> None:
        """Save this state from now on; what is due counts from here."""

    def __enter__(self) -> None:
        """Take the directory and the signals, unless an outer context has."""

    def __exit__(self, *exception: Any) -> bool | None:
        """Give directory and signals back."""
        return None

    def resume(self, restore: Callable[[Path], None]) -> None:
        """Restore what the run goes on from, if there is anything; a `CheckpointError` as `CheckpointParams` says."""

    def require_empty(self) -> None:
        """Raise a `CheckpointError` if there are checkpoints, with which those of a run that begins would mix."""

    def end_training_step(self, is_last: bool) -> None:
        """End if a signal says so, save if that is due; the `is_last` of an epoch is saved with its test step."""

    def break_off(self, test: Callable[[], T]) -> T:
        """Return what a test step collects; a signal breaks it off, unless a training step is under way."""
        return test()

    def end_epoch(self, score: float | None, is_last: bool) -> None:
        """End if a signal says so, save if that is due, if the test step was the best so far, or if the run is over."""


def checkpoints_of(params: TrainerParams, algorithm: Algorithm, unit: Unit) -> NoCheckpoints:
    """Return what saves the runs of a trainer that counts in this unit."""
    if params.checkpoint is None:
        return NoCheckpoints()
    collectors = params.collectors() if params.checkpoint.record_episodes else {}
    parts_of = partial(run_parts, params=params, algorithm=algorithm)
    return RunCheckpoints(params.checkpoint, parts_of, unit, collectors.get("training_collector"))


class RunCheckpoints(NoCheckpoints):
    """Saves a run as `params` say.

    Args:
        params: what to save, and where.
        parts_of: returns the state of each part of a run, given its own.
        unit: what an `every` counts that is a plain number, and what checkpoints are numbered by.
        source: the one whose episodes are recorded; None if none are.
    """

    def __init__(
        self,
        params: CheckpointParams,
        parts_of: Callable[[RunState], Any],
        unit: Unit,
        source: DataSource | None = None,
    ) -> None:
        self._params, self._parts_of, self._unit = params, parts_of, unit
        self._every = as_every(type(params).__name__, params.every, unit)
        self._store = CheckpointStore(params.directory, params.keep_last, params.keep_best)
        self._signals = RunSignals()
        self._num_entered = 0
        self._source = source
        self._episodes: EpisodeWriter | None = None

    def follow(self, state: RunState) -> None:
        """Save this state from now on."""
        self._state, self._ended_step = state, state.training_step
        self._since = self._position()

    def __enter__(self) -> None:
        if self._num_entered == 0:
            with ExitStack() as opened:
                if self._params.signals:
                    opened.enter_context(self._signals)
                self._store.open()
                opened.enter_context(at_the_end(self._store.close))
                if self._source is not None:
                    self._episodes = self._source.record_episodes(Path(self._params.directory) / "episodes")
                    opened.enter_context(at_the_end(partial(self._attempt, self._episodes.close)))
                self._opened = opened.pop_all()
        self._num_entered += 1

    def __exit__(self, *exception: Any) -> bool | None:
        self._num_entered -= 1
        return self._opened.__exit__(*exception) if self._num_entered == 0 else None

    def resume(self, restore: Callable[[Path], None]) -> None:
        """Restore what the params say, with the global random numbers."""
        path = self._to_resume()
        if path is not None:
            restore(path)
            if self._state.global_random is not None:
                self._state.global_random.restore()

    def require_empty(self) -> None:
        """Raise a `CheckpointError` if there are checkpoints."""
        if found := checkpoints_in(self._store.directory):
            text = f"it holds checkpoints, the newest is {found[0].path.name}, and a run would begin anew beside them"
            hint = 'resume="auto" goes on from there; a new run takes a directory of its own, as RunFolder.new makes.'
            raise CheckpointError(f"CheckpointParams.directory {self._params.directory!r}: {text}. {hint}")

    def end_training_step(self, is_last: bool) -> None:
        """End or save, as a signal and the params say."""
        self._ended_step = self._state.training_step
        if self._signals.stopped_by and self._state.stop_reason is None:  # else the epoch ends at once
            self._stop()
        if not is_last and self._is_due():
            self._save()

    def break_off(self, test: Callable[[], T]) -> T:
        """Return what a test step collects, unless a signal breaks it off: what is saved then is the run before it."""
        signals = self._signals
        if self._state.training_step > self._ended_step:
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
        """End or save, as a signal and the params say."""
        if self._signals.stopped_by:
            self._stop(score)
        is_best = self._params.keep_best > 0 and self._state.best.epoch == self._state.counters.epoch
        if self._is_due() or is_best or is_last:
            self._save(score)

    def _to_resume(self) -> Path | None:
        match self._params.resume:
            case "auto":
                return self._store.newest_intact()
            case "never":
                self.require_empty()
                return None
            case path:
                found = [each.path for each in checkpoints_in(self._store.directory) if each.manifest is not None]
                if found and found[0] != Path(os.path.abspath(path)):
                    text = f"the run goes back to {path}, though {found[0]} was saved later"
                    hint = 'resume="auto" goes on from that; a branch takes a directory of its own.'
                    warnings.warn(f"CheckpointParams.resume: {text}. {hint}", RuntimeWarning, stacklevel=5)
                return Path(path)

    def _is_due(self) -> bool:
        before, self._since = self._since, self._position()
        wants_save, self._signals.wants_save = self._signals.wants_save, False
        return wants_save or self._every.crossed(before, self._since)

    def _position(self) -> float:
        """Return how far the run is, in the unit of `every`."""
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
            state.stop_reason = before  # who catches what ends the run may go on with it
        text = "signal %d: the run was saved to %s, from where it can go on"
        logging.getLogger("rltrainer").info(text, self._signals.stopped_by, self._params.directory)

    def _save(self, score: float | None = None) -> None:
        step = getattr(self._state.counters, self._unit)
        if self._episodes is not None:
            self._attempt(self._episodes.flush)
        self._attempt(self._store.save, self._parts_of(self._state), step, score)

    def _attempt(self, act: Callable[..., None], *args: Any) -> None:
        """Have the store do what may fail, and raise or warn as the params say."""
        try:
            act(*args)
        except CheckpointError as error:
            if self._params.on_save_error == "raise":
                raise
            text = 'The run goes on: CheckpointParams.on_save_error is "warn".'
            warnings.warn(f"{error} {text}", RuntimeWarning, stacklevel=4)


STOPS = (signal.SIGTERM, signal.SIGINT)
SAVE = getattr(signal, "SIGUSR1", None)  # not on Windows


class RunSignals:
    """Handles SIGTERM, SIGINT and SIGUSR1 inside its context; in the main thread, as Python handles none elsewhere.

    Attributes:
        stopped_by: the last signal that asked for the end; 0 before.
        num_stops: how many have.
        wants_save: whether SIGUSR1 came since this was set to False.
        breaks_off: whether the first signal ends what runs at once, as a second one does in any case.
    """

    def __init__(self) -> None:
        self.stopped_by = self.num_stops = 0
        self.wants_save = self.breaks_off = False
        self._process = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.wants_save, self._process = False, os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in (*STOPS, *([] if SAVE is None else [SAVE])):
                # None is a handler that is not Python's, which could not be restored. Who ignores a signal, as nohup
                # and shells do for what runs in the background, means it.
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
        """Return what ends the program, as the signal would have without us."""
        return KeyboardInterrupt() if self.stopped_by == signal.SIGINT else SystemExit(128 + self.stopped_by)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork, as of a user's own worker, is no run
            signal.signal(number, self._before[number])
            os.kill(os.getpid(), number)
        elif number == SAVE:
            self.wants_save = True
        else:
            self.stopped_by, self.num_stops = number, self.num_stops + 1
            if self.num_stops > 1 or self.breaks_off:
                raise self.end()
