"""The part of a checkpoint that is a logger's."""

from dataclasses import dataclass, field
from typing import Any

from rltrainer.field_rules import NonNegativeInt
from rltrainer.loggers.extent import Extent
from rltrainer.means import Part
from rltrainer.typed_state import from_state


@dataclass
class LoggerState:
    """State of a logger, as `Logger.state_dict` returns it.

    Args:
        logger: its class.
        last_step: of the last row; -1 before.
        last: where the last row of each kind was.
        files: how far each file was written; of older checkpoints the size only.
        place: the name of its log.
    """

    logger: str
    last_step: int
    last: dict[str, NonNegativeInt | None]
    num_dropped: NonNegativeInt
    files: dict[str, NonNegativeInt | Extent]
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
