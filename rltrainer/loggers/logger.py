"""The parent of all loggers: which rows are due, their means, failures to write, and state; several loggers as one.

It knows no file format: a subclass writes one row.
"""

import dataclasses
import numbers
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypedDict

from rltrainer.errors import ArgumentError, CheckpointError, ParamsError, call_all
from rltrainer.functional.means import Number, Part, floats, gather, merge
from rltrainer.interval import Every
from rltrainer.loggers.log_state import PROGRESS_NAMES, LoggedEpoch, LoggerState, LogPosition, Progress
from rltrainer.state.stateful import Stateful
from rltrainer.validation.field_rules import Flag, PositiveInt, Rule, checked
from rltrainer.validation.suggestions import ExplainsArguments

# The kind of a row: "training", "test", "update" or "epoch", as trainers write them, or a user's own name.
Kind = str
KindName = Annotated[
    str,
    Rule(
        "a name of letters, digits and _ other than 'params'",
        lambda v: isinstance(v, str) and v.isidentifier() and v != "params",
    ),
]
Row = Mapping[str, int | float | None]
Args = ParamSpec("Args")


class LoggerOptions(TypedDict, total=False):
    """The keywords of every logger's constructor; `Logger` explains them."""

    training_interval: int
    test_interval: int
    update_interval: int | None
    strict: bool


class Logger(Stateful[LoggerState], metaclass=ExplainsArguments):
    """Writes the numbers of a run somewhere, each kind of row at its own interval.

    A trainer starts with `begin_run` and `log_params`. It passes measurements to `gather`, calls `log` with the kind of
    row after each collection, update step and test step, and `log_epoch` at the end of an epoch, which also flushes.
    A row is written if a multiple of its interval was crossed since the last row of its kind; the first row always is.
    It holds the means of all numbers gathered since the row before. Names in the log start with the kind:
    `training/return`, `test/score`, `update/loss`. A row of a user's own kind is always written. `step`, the x axis of
    all rows, counts env steps, offline gradient steps.

    A new run never mixes with the rows of another run: if its path is used already, it takes the next free number
    (`runs/cartpole-2`, `log-2.csv`). Rows that are logged without `begin_run` continue the log.

    A failure to write never stops training: the first one warns, and `num_dropped` counts all.

    Args:
        training_interval: env steps between training rows, offline gradient steps.
        test_interval: the same for test rows.
        update_interval: update steps between update rows. None leaves it to the trainer: every update step on policy,
            every 1,000 gradient steps otherwise.
        strict: raise failures to write.
    """

    state_class = LoggerState
    state_name = "logger"

    def __init__(
        self,
        *,
        training_interval: int = 1000,
        test_interval: int = 1,
        update_interval: int | None = None,
        strict: bool = False,
    ) -> None:
        owner = type(self).__name__
        self.strict = checked(owner, "strict", strict, Flag)
        update_interval = checked(owner, "update_interval", update_interval, PositiveInt | None)
        self._is_update_default = update_interval is None
        # The unit of the x axis is "env_step" here, offline too.
        self._every = {
            "training": Every(checked(owner, "training_interval", training_interval, PositiveInt), "env_step"),
            "test": Every(checked(owner, "test_interval", test_interval, PositiveInt), "env_step"),
            "update": Every(update_interval or 1, "update_step"),
        }
        self._state = LoggerState(owner)
        self._has_warned = False

    @property
    def num_dropped(self) -> int:
        """The rows that could not be written."""
        return self._state.num_dropped

    def is_due(self, kind: Kind, step: int, update_step: int = 0, gradient_step: int | None = None) -> bool:
        """Return whether `log` would write a row."""
        every, last = self._every.get(kind), self._state.last.get(kind)
        if every is None or last is None:
            return True
        position = self._position(kind, step, update_step, gradient_step)
        # A position before the last row's: another run has started with the same logger.
        return position < last or every.crossed(last, position)

    def begin_run(self, update_every: Every, *, is_new: bool = True) -> None:
        """Start a run at a path that no run has used, or continue the log that was loaded or found.

        `update_every` is the interval of update rows, in update steps or gradient steps, if the user gave none.
        """
        if self._is_update_default:
            self._every["update"] = update_every
        state = self._state
        if is_new:
            state.gathered.clear()
        # A trainer that is reset and then run starts twice: without training rows, the first log continues.
        if state.has_log and (not is_new or state.last_step <= 0):
            return
        # Set before the log starts, even if that fails: later rows belong to this run, and try again.
        state.has_log, state.has_params = True, False
        if is_new:
            state.last_step, state.last = -1, {}
        with self._guarded("begin a log"):
            self._begin_log()

    def continue_log(self, step: int) -> None:
        """Continue the log that `read_progress` reads at a step, as `resume_from_log` does; later rows are removed."""
        with self._guarded("continue its log"):
            found = self._find_epoch()
            self._state.has_log = self._state.has_params = False
            if found is not None:
                # A run may have been killed between two of its loggers, or one may have failed: its log ends an epoch
                # earlier. That log holds no row of a later step, and is not cut.
                is_same = step == (found.progress.env_step or found.progress.gradient_step)
                state = found.state if is_same else dataclasses.replace(found.state, files={}, last_step=step)
                self.check_state(state)
                self._continue(state)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Write the params of trainer and algorithm, as JSON values by name; once a run, not again on a resume."""
        if not self._state.has_params:
            self._state.has_params = True
            with self._guarded("write the params", num_rows=1):
                self._write_params(params)

    def gather(
        self, kind: Kind, values: Mapping[str, Number], weight: float = 1, weights: Mapping[str, float] | None = None
    ) -> None:
        """Add numbers to the means of the next row of this kind.

        Scalar tensors stay on their device until the row is due. `weights` has the numbers with another weight.
        """
        gather(self._state.gathered.setdefault(kind, []), Part(dict(values), weight, dict(weights or {})), merge)

    def log(self, kind: Kind, values: Row, step: int, update_step: int = 0, gradient_step: int | None = None) -> None:
        """Write the gathered means of a kind of row, and `values`, if its interval was crossed.

        Args:
            kind: of the row; a `ParamsError` if it is no name.
            values: numbers (else an `ArgumentError`) that are no means, such as a learning rate.
            step: the x axis.
            update_step: update steps so far.
            gradient_step: gradient steps so far; None: as many as update steps.
        """
        kind = checked(f"{type(self).__name__}.log", "kind", kind, KindName)
        if self.is_due(kind, step, update_step, gradient_step):
            self._log(kind, values, step, self._position(kind, step, update_step, gradient_step))

    def log_rest(self, kind: Kind, values: Row, step: int, update_step: int, gradient_step: int) -> None:
        """Write what no row of this kind holds yet, at the end of a run; arguments as in `log`."""
        position, last = self._position(kind, step, update_step, gradient_step), self._state.last.get(kind)
        if last is not None and position > last:
            self._log(kind, values, step, position)
        elif self._state.gathered.get(kind):  # after the row of this step, which holds `values`
            self._log(kind, values if last is None else {}, step, position)

    def log_epoch(self, progress: Progress) -> None:
        """Write the fields of a `ProgressRow` (a `ValueError` if some lack), flush, and write the counters' file."""
        missing = [name for name in PROGRESS_NAMES if name not in progress]
        if missing:
            raise ValueError(f"{type(self).__name__}.log_epoch: progress lacks {', '.join(missing)}")
        self.log("epoch", progress, int(progress["env_step"] or progress["gradient_step"] or 0))
        self.flush()
        with self._guarded("write its counters"):
            # After the flush: a kill between the two leaves counters of an epoch before, never of rows that are lost.
            if (path := self._counters_file()) is not None:
                row = {name: self._checked("epoch", name, progress[name]) for name in PROGRESS_NAMES}
                LoggedEpoch.write(path, row, self.get_state())

    def read_progress(self) -> Progress | None:
        """Return the progress of the last whole `log_epoch`, before this run starts the last run's; or None.

        Raises:
            CheckpointError: it is damaged, or holds values that no run resumes from; the text names them.
        """
        try:
            found = self._find_epoch()
        except CheckpointError as error:
            raise CheckpointError(f"{error}. Remove it, or log the run elsewhere.") from error
        return None if found is None else vars(found.progress)

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        with self._guarded("flush"):
            self._flush()

    def close(self) -> None:
        """Flush and release files; a later row opens them again."""
        with self._guarded("close"):
            self._close()

    def get_state(self) -> LoggerState:
        """Return the positions of the last rows, and how far each file was written."""
        files: dict[str, LogPosition] = {}
        with self._guarded("measure its files"):
            files = self._measure_files()
        return dataclasses.replace(self._state, files=files, log=self._log_name())

    def check_state(self, state: LoggerState) -> None:
        """Warn of files that are not the log of the state: they are left alone, and the run takes a new number."""
        if state.logger == type(self).__name__:
            with self._guarded("compare its files with the checkpoint's"):
                self._check_files(state)

    def set_state(self, state: LoggerState) -> None:
        """Continue a log: rows written after `state` was taken are removed.

        Another class of logger's state continues the intervals only, and the state of several loggers nothing.
        """
        if state.logger != "MultiLogger":
            self._continue(state)
            with self._guarded("cut its files"):
                self._cut()

    def _continue(self, state: LoggerState) -> None:
        """Take over a state; the next row cuts the files."""
        owner = type(self).__name__
        self._state = dataclasses.replace(state, logger=owner, files={}, has_log=False, has_params=False)
        if state.logger == owner:
            with self._guarded("continue its files"):
                if self._continue_files(state):
                    self._state.has_log, self._state.has_params = state.has_log, state.has_params

    @abstractmethod
    def _write(self, kind: Kind, values: Row, step: int) -> None:
        """Write one row; the names in `values` start with their kind. May raise anything."""

    def _write_params(self, params: Mapping[str, Any]) -> None:
        """Write the params of the run. May raise anything."""

    def _flush(self) -> None:
        return

    def _close(self) -> None:
        return

    # A logger whose log continues after a restore also overrides the following methods.

    def _begin_log(self) -> None:
        """Start a log that no run has written to."""

    def _log_name(self) -> str | None:
        """Return the name of this run's log."""
        return None

    def _measure_files(self) -> dict[str, LogPosition]:
        """Return how far each file was written, by name within the logger."""
        return {}

    def _check_files(self, state: LoggerState) -> None:
        """Warn of files that cannot be continued."""

    def _continue_files(self, state: LoggerState) -> bool:
        """Continue the log of a state; False if the files belong to another log."""
        return True

    def _cut(self) -> None:
        """Remove the rows after the state that was loaded."""

    def _counters_file(self) -> Path | None:
        """Return the small file of counters beside the log; None for a logger without one."""
        return None

    def _find_epoch(self) -> LoggedEpoch | None:
        """Return the end of the last whole epoch in the log."""
        path = self._counters_file()
        return LoggedEpoch.read(path) if path is not None and path.exists() else None

    def _position(self, kind: Kind, step: int, update_step: int, gradient_step: int | None) -> int:
        """Return the count that the interval of this kind of row divides."""
        unit = self._every[kind].unit if kind in self._every else "env_step"
        if unit == "gradient_step" and gradient_step is not None:
            return gradient_step
        return step if unit == "env_step" else update_step

    def _log(self, kind: Kind, values: Row, step: int, position: int) -> None:
        state = self._state
        means = floats(merge(state.gathered.pop(kind, [])).values)
        row = {f"{kind}/{name}": self._checked(kind, name, value) for name, value in {**values, **means}.items()}
        state.last_step, state.has_log = step, True
        with self._guarded(f"write the {kind} row of step {step}", num_rows=1):
            self._write(kind, row, step)
        if kind in self._every:
            state.last[kind] = position

    def _checked(self, kind: Kind, name: str, value: object) -> int | float | None:
        # Numbers of NumPy too; a plain int or float is the same text in every format of a log.
        if not isinstance(value, bool) and isinstance(value, numbers.Real):
            return int(value) if isinstance(value, numbers.Integral) else float(value)
        if value is None and kind == "epoch":
            return None
        raise ArgumentError.about(type(self).__name__, f"log({kind!r})[{name!r}]", "must be a number", value)

    @contextmanager
    def _guarded(self, action: str, num_rows: int = 0) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # training continues, whatever the library of a subclass raises
            if self.strict:
                raise
            # A full disk fails at every row: one warning says so, the count says how much is lost.
            self._state.num_dropped += num_rows
            if not self._has_warned:
                self._has_warned = True
                cause = f"{type(error).__name__}: {error}"
                text = f"{self!r} could not {action} ({cause}). Training continues; this warning comes once, and"
                hint = "num_dropped counts the rows that were dropped. strict=True raises instead."
                warnings.warn(f"{text} {hint}", RuntimeWarning, stacklevel=4)


def _by_each(method: Callable[Concatenate[Any, Args], None]) -> Callable[Concatenate["MultiLogger", Args], None]:
    # Return a method that calls this method of every logger, even if one raises.

    @wraps(method)
    def call_each(self: "MultiLogger", /, *args: Args.args, **kwargs: Args.kwargs) -> None:
        call_all(partial(getattr(logger, method.__name__), *args, **kwargs) for logger in self.loggers)

    return call_each


class MultiLogger(Logger):
    """Passes every row to several loggers, each with its own intervals, files and failures; none is a `ParamsError`."""

    def __init__(self, *loggers: Logger) -> None:
        super().__init__()
        if not loggers or not all(isinstance(logger, Logger) for logger in loggers):
            raise ParamsError.about("MultiLogger", "loggers", "must be one Logger or more", loggers)
        self.loggers = loggers

    begin_run = _by_each(Logger.begin_run)
    continue_log = _by_each(Logger.continue_log)
    log_params = _by_each(Logger.log_params)
    gather = _by_each(Logger.gather)
    log = _by_each(Logger.log)
    log_rest = _by_each(Logger.log_rest)
    log_epoch = _by_each(Logger.log_epoch)
    flush = _by_each(Logger.flush)
    close = _by_each(Logger.close)

    @property
    def num_dropped(self) -> int:
        """The rows that all its loggers failed to write."""
        return sum(logger.num_dropped for logger in self.loggers)

    def is_due(self, kind: Kind, step: int, update_step: int = 0, gradient_step: int | None = None) -> bool:
        """Return whether any would write a row."""
        return any(logger.is_due(kind, step, update_step, gradient_step) for logger in self.loggers)

    def read_progress(self) -> Progress | None:
        """Return the progress of the logger that is furthest, so that no log holds a row of a later step.

        A kill between two loggers leaves the second one epoch behind, a failing logger stays further behind.
        """
        known = filter(None, [logger.read_progress() for logger in self.loggers])
        return max(known, key=lambda progress: progress["env_step"] or progress["gradient_step"] or 0, default=None)

    def get_state(self) -> LoggerState:
        """Return the states of all, in order."""
        return LoggerState("MultiLogger", loggers=[logger.get_state() for logger in self.loggers])

    def check_state(self, state: LoggerState) -> None:
        """Check the state of each logger."""
        for logger, part in self._known(state):
            logger.check_state(part)

    def set_state(self, state: LoggerState) -> None:
        """Continue each logger whose class wrote its state; other loggers start new logs."""
        for logger, part in self._known(state):
            logger.set_state(part)

    def _known(self, state: LoggerState) -> Iterator[tuple[Logger, LoggerState]]:
        parts = zip(self.loggers, state.loggers, strict=False)
        return ((logger, part) for logger, part in parts if part.logger == type(logger).__name__)

    def __repr__(self) -> str:
        return f"MultiLogger({', '.join(map(repr, self.loggers))})"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        raise NotImplementedError("each of its loggers writes")
