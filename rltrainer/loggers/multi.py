"""Log to several places at once."""

from collections.abc import Mapping
from typing import Any, Literal

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.interval import Every
from rltrainer.loggers.logger import Kind, Logger, Row
from rltrainer.loggers.logger_state import MultiLoggerState, read_logger_state
from rltrainer.loggers.progress import Progress
from rltrainer.means import Number
from rltrainer.types import Load, State


class MultiLogger(Logger):
    """Hand every row to several loggers, each of which keeps its own intervals, files and failures.

    Args:
        loggers: one logger or more.

    Raises:
        ParamsError: there is none, or one of them is no logger.
    """

    def __init__(self, *loggers: Logger) -> None:
        super().__init__()
        if not loggers or not all(isinstance(logger, Logger) for logger in loggers):
            raise ParamsError(field_error_text("MultiLogger", "loggers", "must be one Logger or more", loggers))
        self.loggers = loggers

    @property
    def num_dropped(self) -> int:
        """The rows that all its loggers failed to write."""
        return sum(logger.num_dropped for logger in self.loggers)

    def check_step_unit(self, unit: Literal["env_step", "gradient_step"]) -> None:
        """Check the intervals of each."""
        for logger in self.loggers:
            logger.check_step_unit(unit)

    def due_training(self, step: int) -> bool:
        """Return whether any would write a training row."""
        return any(logger.due_training(step) for logger in self.loggers)

    def due_update(self, update_step: int, gradient_step: int | None = None) -> bool:
        """Return whether any would write an update row."""
        return any(logger.due_update(update_step, gradient_step) for logger in self.loggers)

    def begin_run(self, update_interval: Every, *, is_new: bool = True) -> None:
        """Begin with each, which may come to different numbers."""
        for logger in self.loggers:
            logger.begin_run(update_interval, is_new=is_new)

    def continue_log(self, step: int) -> None:
        """Continue the log of each."""
        for logger in self.loggers:
            logger.continue_log(step)

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Hand the params to each."""
        for logger in self.loggers:
            logger.log_params(params)

    def gather(
        self,
        kind: Literal["training", "update"],
        values: Mapping[str, Number],
        weight: float = 1,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Hand the numbers to each."""
        for logger in self.loggers:
            logger.gather(kind, values, weight, weights)

    def log_training(self, values: Row, step: int) -> None:
        """Hand the row to each."""
        for logger in self.loggers:
            logger.log_training(values, step)

    def log_test(self, values: Row, step: int) -> None:
        """Hand the row to each."""
        for logger in self.loggers:
            logger.log_test(values, step)

    def log_update(self, values: Row, step: int, update_step: int, gradient_step: int | None = None) -> None:
        """Hand the row to each."""
        for logger in self.loggers:
            logger.log_update(values, step, update_step, gradient_step)

    def log_rest(self, values: Row, step: int, update_step: int, gradient_step: int) -> None:
        """Have each write what is left."""
        for logger in self.loggers:
            logger.log_rest(values, step, update_step, gradient_step)

    def log_epoch(self, progress: Progress) -> None:
        """Hand the row to each."""
        for logger in self.loggers:
            logger.log_epoch(progress)

    def read_progress(self) -> Progress | None:
        """Return the progress of the first logger that has one."""
        return next((found for logger in self.loggers if (found := logger.read_progress()) is not None), None)

    def flush(self) -> None:
        """Flush each."""
        for logger in self.loggers:
            logger.flush()

    def close(self) -> None:
        """Close each."""
        for logger in self.loggers:
            logger.close()

    def state_dict(self) -> State:
        """Return the states of all, in order."""
        return {"logger": "MultiLogger", "loggers": [logger.state_dict() for logger in self.loggers]}

    def prepare_load(self, state: State) -> Load:
        """Return what continues each logger whose place in the list held one of its class; others start anew."""
        found = read_logger_state(state)
        if not isinstance(found, MultiLoggerState):
            return lambda: None
        loads = [
            logger.prepare_load(part)
            for logger, part in zip(self.loggers, found.loggers, strict=False)
            if part.get("logger") == type(logger).__name__
        ]

        def load() -> None:
            for load_one in loads:
                load_one()

        return load

    def __repr__(self) -> str:
        return f"MultiLogger({', '.join(map(repr, self.loggers))})"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        raise NotImplementedError("each of its loggers writes")
