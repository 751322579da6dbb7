"""The parent of all loggers: which rows are due, what they are means of, what a failure to write does, what is kept.

Knows no file format: a subclass writes one row.
"""

import numbers
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from rltrainer.errors import CheckpointError, ParamsError, field_error_text
from rltrainer.functional.means import Number, Part, floats, gather, merge
from rltrainer.interval import Every, Unit
from rltrainer.loggers.log_state import (
    PROGRESS_NAMES,
    Extent,
    LoggedEpoch,
    LoggerState,
    MultiLoggerState,
    Progress,
    read_logger_state,
    write_logged_epoch,
)  # fmt: skip
from rltrainer.state.typed_state import to_state
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import Flag, Rule, as_python, checked, is_int
from rltrainer.validation.suggestions import ExplainsArguments

Kind = str
"""Of a row: "training", "test", "update" or "epoch", as trainers write them, or a name of one's own."""
KindName = Annotated[
    str,
    Rule(
        "a name of letters, digits and _ other than 'params'",
        lambda v: isinstance(v, str) and v.isidentifier() and v != "params",
    ),
]
Row = Mapping[str, int | float | None]


class LoggerOptions(TypedDict, total=False):
    """The keywords of every logger's constructor; `Logger` explains them."""

    training_interval: int | Every
    test_interval: int | Every
    update_interval: int | Every | None
    strict: bool


class Logger(metaclass=ExplainsArguments):
    """Write the numbers of a run somewhere, each kind of row at its own interval.

    A trainer begins with `begin_run` and `log_params`. It hands on what it measures with `gather`, calls `log`
    with the kind of row after each collection, update step and test step, and `log_epoch` at the end of an epoch, which
    also flushes. A row is written if its interval was crossed since the last row of its kind;
    the first is always written. It holds the means of all that was gathered since the row before. Names in the log
    carry the kind: `training/return`, `test/score`, `update/loss`. A row of another kind than those is written whenever
    it is logged. `step`, the x axis of all rows, counts env steps, offline gradient steps.

    A run that is not resumed never mixes with another one's rows: where its path is used already, it takes the next
    free number (`runs/cartpole-2`, `log-2.csv`). Who calls no `begin_run` continues the log.

    A failure to write never stops training: the first one warns, all are counted in `num_dropped`.

    Args:
        training_interval: steps between training rows; an int, or an `Every` in env steps (offline gradient steps).
        test_interval: the same for test rows.
        update_interval: update steps between update rows; an int, or an `Every` in update steps or gradient steps.
            None leaves it to the trainer: every update step on policy, every 1,000 gradient steps otherwise.
        strict: raise what goes wrong while writing.

    Raises:
        ParamsError: an interval or `strict` breaks its rule.
    """

    def __init__(
        self,
        *,
        training_interval: int | Every = 1000,
        test_interval: int | Every = 1,
        update_interval: int | Every | None = None,
        strict: bool = False,
    ) -> None:
        owner = type(self).__name__
        self.strict = checked(owner, "strict", strict, Flag)
        self._num_dropped = 0
        self.last_step = -1
        self._intervals = {
            "training": Interval(owner, "training_interval", training_interval, STEP_UNITS),
            "test": Interval(owner, "test_interval", test_interval, STEP_UNITS),
            "update": Interval(owner, "update_interval", update_interval, UPDATE_UNITS, may_be_none=True),
        }
        self._gathered: dict[str, list[Part]] = {}
        self._has_place = self._has_params = False
        self._has_warned = False

    @property
    def num_dropped(self) -> int:
        """The rows that could not be written."""
        return self._num_dropped

    def check_step_unit(self, unit: Literal["env_step", "gradient_step"]) -> None:
        """Check the intervals against what the trainer's `step` counts.

        Raises:
            ParamsError: an interval is an `Every` in the other unit.
        """
        for kind in ("training", "test"):
            self._intervals[kind].check_unit(unit)

    def is_due(self, kind: Kind, step: int, update_step: int = 0, gradient_step: int | None = None) -> bool:
        """Return whether `log` would write a row."""
        interval = self._intervals.get(kind)
        return interval is None or interval.is_due(self._position(kind, step, update_step, gradient_step))

    def begin_run(self, update_interval: Every, *, is_new: bool = True) -> None:
        """Begin a run at a path that no run has used, or go on with one.

        Args:
            update_interval: holds where the user gave none.
            is_new: False goes on at the place that `load_state_dict` or `continue_log` found, if one of them did.
        """
        self._intervals["update"].set_default(update_interval)
        if is_new:
            self._gathered.clear()
        # A trainer that is reset and then run begins twice: where no training was logged, the first log goes on.
        if self._has_place and (not is_new or self.last_step <= 0):
            return
        self._has_place, self._has_params = True, False
        if is_new:
            self.last_step = -1
            for interval in self._intervals.values():
                interval.last = None
        with self._guarded("begin a log", num_rows=0):
            self._take_new_place()

    def continue_log(self, step: int) -> None:
        """Continue the log that `read_progress` reads, as `resume_from_log` does.

        Args:
            step: where the run resumes; later rows are removed before the next is written, as they come again.
        """
        with self._guarded("continue its log", num_rows=0):
            found = self._find_epoch()
            self._has_place = self._has_params = False
            if found is not None:
                self._prepare(found.state_at(step))()

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Write what the run was told, once: not again on a resume.

        Args:
            params: whatever JSON can hold, by name: that of the trainer, of the algorithm.
        """
        if not self._has_params:
            self._has_params = True
            with self._guarded("write the params", num_rows=1):
                self._write_params(params)

    def gather(
        self, kind: Kind, values: Mapping[str, Number], weight: float = 1, weights: Mapping[str, float] | None = None
    ) -> None:
        """Take numbers in; the next row of this kind holds the means of all since the last.

        Args:
            kind: of the row.
            values: floats or scalar tensors, which stay on their device until the row is due.
            weight: how much they weigh in the means, such as the gradient steps that they stand for.
            weights: of those that weigh less than that.
        """
        gather(self._gathered.setdefault(kind, []), Part(dict(values), weight, dict(weights or {})), merge)

    def log(self, kind: Kind, values: Row, step: int, update_step: int = 0, gradient_step: int | None = None) -> None:
        """Write what was gathered for a row of this kind, and `values`, if its interval was crossed.

        Args:
            kind: of the row.
            values: what is no mean, such as a learning rate.
            step: the x axis.
            update_step: update steps made so far; of update rows, as is the next.
            gradient_step: gradient steps made so far; None takes them for as many as update steps.

        Raises:
            ParamsError: the kind is no name.
            TypeError: a value is not a number.
        """
        kind = checked(f"{type(self).__name__}.log", "kind", kind, KindName)
        if self.is_due(kind, step, update_step, gradient_step):
            self._log(kind, values, step, self._position(kind, step, update_step, gradient_step))

    def log_rest(self, kind: Kind, values: Row, step: int, update_step: int, gradient_step: int) -> None:
        """Write what no row of this kind holds yet, at the end of a run; arguments as in `log`."""
        position, last = self._position(kind, step, update_step, gradient_step), self._intervals[kind].last
        if last is not None and position > last:
            self._log(kind, values, step, position)
        elif self._gathered.get(kind):  # after the row of this step, which holds `values`
            self._log(kind, values if last is None else {}, step, position)

    def log_epoch(self, progress: Progress) -> None:
        """Write how far the run has come, and flush; then write the file of counters that `read_progress` reads.

        Args:
            progress: the counts `epoch`, `env_step`, `update_step`, `gradient_step`, and `best_score`, `best_return`,
                `best_return_std`, `best_epoch`, None where there is none yet; and `is_stopped`, 1 if `stop_fn` ended
                the run, else 0.

        Raises:
            ValueError: one of these is missing.
        """
        missing = [name for name in PROGRESS_NAMES if name not in progress]
        if missing:
            raise ValueError(f"{type(self).__name__}.log_epoch: progress lacks {', '.join(missing)}")
        self.log("epoch", progress, int(progress["env_step"] or progress["gradient_step"] or 0))
        self.flush()
        with self._guarded("write its counters", num_rows=0):
            if (path := self._counters_file()) is not None:
                row = {name: self._checked("epoch", name, progress[name]) for name in PROGRESS_NAMES}
                write_logged_epoch(path, row, self.state_dict())

    def read_progress(self) -> Progress | None:
        """Return what the last whole `log_epoch` wrote, or None if there was none. Nothing that is read is run.

        Before a run has begun, the last of all runs at this path is read.

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
        with self._guarded("flush", num_rows=0):
            self._flush()

    def close(self) -> None:
        """Flush and release files; a later row opens them again."""
        with self._guarded("close", num_rows=0):
            self._close()

    def state_dict(self) -> State:
        """Return where the last rows were, and how much of each file was written."""
        files: dict[str, Extent] = {}
        with self._guarded("measure its files", num_rows=0):
            files = self._measure_files()
        return {
            "logger": type(self).__name__,
            "last_step": self.last_step,
            "last": {kind: interval.last for kind, interval in self._intervals.items()},
            "num_dropped": self._num_dropped,
            "gathered": to_state(self._gathered),
            "has_place": self._has_place,
            "has_params": self._has_params,
            "place": self._place_name(),
            "files": to_state(files),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue a log: rows written after `state` was taken are removed.

        A file that is not the log that the state knows is left alone, with a warning, and the run takes a new number.
        The state of another class of logger continues the intervals only, that of several loggers nothing.

        Raises:
            CheckpointError: it is no state of a logger; nothing was changed.
        """
        self.prepare_load(state)()

    def prepare_load(self, state: State) -> Load:
        """Check a whole state, warn of files that cannot be continued, and return what loads it."""
        found = read_logger_state(state)
        if isinstance(found, MultiLoggerState):
            return lambda: None
        load_state = self._prepare(found)

        def load() -> None:
            load_state()
            with self._guarded("cut its files", num_rows=0):
                self._cut()

        return load

    def _prepare(self, found: LoggerState) -> Load:
        """Return what takes up a state; files are cut when the next row is written."""
        continue_files: Load | None = None
        if found.logger == type(self).__name__:
            with self._guarded("compare its files with the checkpoint's", num_rows=0):
                continue_files = self._prepare_files(found)

        def load() -> None:
            self.last_step, self._num_dropped = found.last_step, found.num_dropped
            for kind, interval in self._intervals.items():
                interval.last = found.last.get(kind)
            self._gathered = found.gathered
            self._has_place = self._has_params = False
            if continue_files is not None:
                with self._guarded("continue its files", num_rows=0):
                    continue_files()
                self._has_place, self._has_params = found.has_place, found.has_params

        return load

    @abstractmethod
    def _write(self, kind: Kind, values: Row, step: int) -> None:
        """Write one row; the names in `values` carry their kind already. May raise anything."""

    def _flush(self) -> None:
        """Hand written rows to the operating system."""
        return

    def _close(self) -> None:
        """Release files."""
        return

    def _measure_files(self) -> dict[str, Extent]:
        """Return how far each file was written, by name within the logger."""
        return {}

    def _prepare_files(self, state: LoggerState) -> Load | None:
        """Compare the files with what a checkpoint knows; return what removes later rows, None for another log."""
        return lambda: None

    def _write_params(self, params: Mapping[str, Any]) -> None:
        """Write what the run was told. May raise anything."""
        return

    def _cut(self) -> None:
        """Remove what files hold beyond the state that was loaded."""
        return

    def _counters_file(self) -> Path | None:
        """Return the small file of counters beside the log; None for a logger that leaves none."""
        return None

    def _find_epoch(self) -> LoggedEpoch | None:
        """Return the end of the last whole epoch in the log."""
        path = self._counters_file()
        return LoggedEpoch.read(path) if path is not None and path.exists() else None

    def _place_name(self) -> str | None:
        """Return the name of this run's log; None for a logger that writes no files."""
        return None

    def _take_new_place(self) -> None:
        """Begin a log that no run has written to."""
        return

    def _position(self, kind: Kind, step: int, update_step: int, gradient_step: int | None) -> int:
        """Return what the interval of this kind of row counts."""
        if kind != "update":
            return step
        return (
            update_step if gradient_step is None or self._intervals[kind].every.unit == "update_step" else gradient_step
        )

    def _log(self, kind: Kind, values: Row, step: int, position: int) -> None:
        means = floats(merge(self._gathered.pop(kind, [])).values)
        row = {f"{kind}/{name}": self._checked(kind, name, value) for name, value in {**values, **means}.items()}
        self.last_step, self._has_place = step, True
        with self._guarded(f"write the {kind} row of step {step}", num_rows=1):
            self._write(kind, row, step)
        if kind in self._intervals:
            self._intervals[kind].last = position

    def _checked(self, kind: Kind, name: str, value: object) -> int | float | None:
        if not isinstance(value, bool) and isinstance(value, numbers.Real):
            return int(value) if isinstance(value, numbers.Integral) else float(value)
        if value is None and kind == "epoch":
            return None
        raise TypeError(field_error_text(type(self).__name__, f"log({kind!r})[{name!r}]", "must be a number", value))

    @contextmanager
    def _guarded(self, action: str, num_rows: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a subclass's library raises, training goes on
            if self.strict:
                raise
            self._num_dropped += num_rows
            if not self._has_warned:
                self._has_warned = True
                cause = f"{type(error).__name__}: {error}"
                warnings.warn(
                    f"{self!r} could not {action} ({cause}). Training goes on; this is said once and dropped rows are "
                    "counted in num_dropped. strict=True raises instead.",
                    RuntimeWarning,
                    stacklevel=4,
                )


STEP_UNITS: tuple[Unit, ...] = ("env_step", "gradient_step")
UPDATE_UNITS: tuple[Unit, ...] = ("update_step", "gradient_step")


class Interval:
    """The interval of one kind of row.

    Args:
        owner, field: the logger's class and its argument, for error texts.
        value: what the user gave; None, where it is allowed, leaves it to the trainer and is 1 until `set_default`.
        units: the units that an `Every` may have; an int counts in the first.
        may_be_none: whether None is allowed.

    Raises:
        ParamsError: the value is neither a positive integer nor an `Every` in one of `units`.
    """

    def __init__(
        self, owner: str, field: str, value: int | Every | None, units: tuple[Unit, ...], may_be_none: bool = False
    ) -> None:
        value = as_python(value)
        is_count = is_int(value) and value > 0
        self.is_default = value is None and may_be_none
        if not (is_count or self.is_default or (isinstance(value, Every) and value.unit in units)):
            words = " or ".join(f"{unit.replace('_', ' ')}s" for unit in units)
            rule = f"must be a positive integer or an Every in {words}"
            raise ParamsError(field_error_text(owner, field, rule + (", or None" if may_be_none else ""), value))
        self.owner, self.field, self.value = owner, field, value
        self.every = value if isinstance(value, Every) else Every(value or 1, units[0])
        self.last: int | None = None
        """Position of the last row; None before the first."""

    def set_default(self, every: Every) -> None:
        """Take this interval where the user gave none."""
        if self.is_default:
            self.every = every

    def is_due(self, position: int) -> bool:
        """Return whether the interval was crossed since the last row; the first row is always due."""
        last, n = self.last, self.every.n
        # A position behind the last row's: another run began with the same logger.
        return last is None or position < last or position // n > last // n

    def check_unit(self, unit: Unit) -> None:
        """Raise a `ParamsError` for an `Every` in another unit than the trainer's log counts; an int fits any."""
        if isinstance(self.value, Every) and self.value.unit != unit:
            words = unit.replace("_", " ")
            rule = f"must be an integer or an Every in {words}s, which this trainer counts"
            raise ParamsError(field_error_text(self.owner, self.field, rule, self.value))
