"""Whether a checkpoint belongs to the run that wants to continue it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from rltrainer.algorithms import Algorithm
from rltrainer.errors import CheckpointError, stable_repr
from rltrainer.params import Params
from rltrainer.types import State

MAY_DIFFER = ("max_epochs", "verbose", "show_progress", "resume_from_log")
"""Fields that do not change what is learned; callbacks and live objects are not compared either."""


def plain_fields(params: Params, algorithm: Algorithm) -> State:
    """Return the settings that must not change on a resume, of the trainer and of its algorithm."""
    settings = _fields(params)
    algorithm_params = getattr(algorithm, "params", None)
    return settings | (_fields(algorithm_params) if isinstance(algorithm_params, Params) else {})


def check_same_run(path: str | Path, saved: State, current: State) -> None:
    """Compare a checkpoint's settings with the current ones; those that its version did not have yet are not compared.

    Raises:
        CheckpointError: a setting differs; the text names it.
    """
    for name in sorted(saved):
        if saved.get(name) != current.get(name):
            text = f"{path}: {name} was {saved.get(name)!r} when it was saved and is {current.get(name)!r} now"
            raise CheckpointError(f"{text}. A resumed run keeps its settings; only {', '.join(MAY_DIFFER)} may change.")


def _fields(params: Params) -> State:
    values: dict[str, Any] = json.loads(params.to_json())["fields"]
    compared = {field.name for field in dataclasses.fields(params) if field.compare} - set(MAY_DIFFER)
    for name in compared:
        value = getattr(params, name)
        if dataclasses.is_dataclass(value) and not isinstance(value, Params):
            # A schedule: of a user's JSON has only the name, but its numbers matter too; of ours, files hold this text.
            values[name] = stable_repr(value)
    return {f"{type(params).__name__}.{name}": values[name] for name in values if name in compared}
