"""How far a run has come: the row of numbers that `log_epoch` writes and `resume_from_log` reads back."""

from collections.abc import Mapping

from rltrainer.field_rules import is_int

Progress = dict[str, int | float | None]

COUNTS = ("epoch", "env_step", "update_step", "gradient_step")
PROGRESS_NAMES = (*COUNTS, "best_score", "best_return", "best_return_std", "best_epoch", "is_stopped")


def parse_progress(row: Mapping[str, object]) -> Progress:
    """Return the progress in a row that was read from a log, where names are `epoch/<name>`.

    Raises:
        ValueError: a name is missing or its value is none that `log_epoch` writes, as in a row that a kill broke off.
    """
    progress: Progress = {}
    for name in PROGRESS_NAMES:
        value = row.get(f"epoch/{name}", "missing")
        if name in COUNTS and not (is_int(value) and value >= 0):
            raise ValueError(f"epoch/{name}: expected a count, found {value!r}")
        if not (value is None or isinstance(value, float) or is_int(value)):
            raise ValueError(f"epoch/{name}: expected a number, found {value!r}")
        progress[name] = value
    return progress
