"""Log to several places at once."""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec

from rltrainer.errors import ParamsError, call_all, field_error_text
from rltrainer.loggers.log_state import MultiLoggerState, Progress, read_logger_state
from rltrainer.loggers.logger import Kind, Logger, Row
from rltrainer.types import Load, State

Args = ParamSpec("Args")


def _by_each(method: Callable[Concatenate[Any, Args], None]) -> Callable[Concatenate["MultiLogger", Args], None]:
    # Return the method that calls this one of each logger, also where one of them raises.

    @wraps(method)
    def call_each(self: "MultiLogger", /, *args: Args.args, **kwargs: Args.kwargs) -> None:
        call_all(partial(getattr(logger, method.__name__), *args, **kwargs) for logger in self.loggers)

    return call_each


class MultiLogger(Logger):
    """Passes every row to several loggers, each with its own intervals, files and failures."""

    def __init__(self, *loggers: Logger) -> None:
        super().__init__()
        if not loggers or not all(isinstance(logger, Logger) for logger in loggers):
            raise ParamsError(field_error_text("MultiLogger", "loggers", "must be one Logger or more", loggers))
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
        found = [progress for logger in self.loggers if (progress := logger.read_progress()) is not None]
        return max(found, key=lambda progress: progress["env_step"] or progress["gradient_step"] or 0, default=None)

    def state_dict(self) -> State:
        """Return the states of all, in order."""
        return {"logger": "MultiLogger", "loggers": [logger.state_dict() for logger in self.loggers]}

    def prepare_load(self, state: State) -> Load:
        """Return the function that continues each logger whose state is of its class; other loggers begin new logs."""
        found = read_logger_state(state)
        parts = zip(self.loggers, found.loggers if isinstance(found, MultiLoggerState) else [], strict=False)
        loads = [each.prepare_load(part) for each, part in parts if part.get("logger") == type(each).__name__]

        def load() -> None:
            for load_one in loads:
                load_one()

        return load

    def __repr__(self) -> str:
        return f"MultiLogger({', '.join(map(repr, self.loggers))})"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        raise NotImplementedError("each of its loggers writes")
