"""The progress of a run: the row of numbers that `log_epoch` writes and `resume_from_log` reads back."""

from collections.abc import Callable, Mapping
from typing import Any

from rltrainer.errors import CheckpointError, readable
from rltrainer.field_rules import is_finite, is_int
from rltrainer.json_text import read_json

Progress = dict[str, int | float | None]

COUNTS = ("epoch", "env_step", "update_step", "gradient_step")
PROGRESS_NAMES = (*COUNTS, "best_score", "best_return", "best_return_std", "best_epoch", "is_stopped")
LARGEST_COUNT = 2**53
"""Beyond, floats are no exact counts: no run takes so many steps."""


def parse_progress(row: Mapping[str, object]) -> Progress:
    """Return the progress in a row that was read from a log, where names are `epoch/<name>`.

    Raises:
        ValueError: a name is missing, or its value is none that a run goes on from.
    """
    progress: Progress = {}
    for name in PROGRESS_NAMES:
        value: Any = row.get(f"epoch/{name}", "missing")
        rule, accepts = _RULES.get(name, ("a finite number, or none", lambda v: v is None or is_finite(v)))
        if not accepts(value):
            raise ValueError(f"epoch/{name}: expected {rule}, found {readable(value)}")
        progress[name] = value
    if (progress["best_epoch"] or 0) > (progress["epoch"] or 0):
        raise ValueError(f"epoch/best_epoch: expected one up to {progress['epoch']}, found {progress['best_epoch']}")
    return progress


def read_progress_row(where: str, found: Mapping[str, Any] | str | bytes) -> Progress | None:
    """Return the progress in a row, or its JSON; None if it is a row of another kind.

    Args:
        where: the log and the row, for the error's text.
        found: what was read.

    Raises:
        CheckpointError: it is no row, or holds what no run goes on from.
    """
    try:
        row = read_json(found, allows_nan=True) if isinstance(found, str | bytes) else found
        if not isinstance(row, Mapping):
            raise ValueError(f"expected a row, found {readable(row)}")
        return parse_progress(row) if row.get("kind", "epoch") == "epoch" else None
    except ValueError as error:
        hint = "Remove that row, or log the run elsewhere."
        raise CheckpointError(f"{where}: no run goes on from it: {error}. {hint}") from error


def _is_count(value: object) -> bool:
    return is_int(value) and 0 <= value < LARGEST_COUNT


_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **{name: ("a count", _is_count) for name in COUNTS},
    "best_epoch": ("a count, or none", lambda v: v is None or _is_count(v)),
    "best_return_std": ("a number of at least 0, or none", lambda v: v is None or (is_finite(v) and v >= 0)),
    "is_stopped": ("0 or 1", lambda v: is_int(v) and v in (0, 1)),
}
