"""Checks of an optimizer's saved state, beside those of its update rule."""

from torch import Tensor

from rltrainer.errors import CheckpointError, readable
from rltrainer.field_rules import is_int
from rltrainer.typed_state import check_like
from rltrainer.types import State

AS_SAVED = "Build the networks as when it was saved"
COUNTS = ("num_skipped", "loss_scale", "num_good")
"""Scalars that are in a state if the plan of the run asked for them."""


def check_kind(name: str, state: State, current: State) -> None:
    """Check that a state is of the same update rule and the same parameters, of which the same are frozen.

    Raises:
        CheckpointError: it is not; the text begins with `name`.
    """
    if state.get("rule") != current["rule"]:
        rules = f"expected {current['rule']!r}, found {readable(state.get('rule'))}"
        raise CheckpointError(f"{name}: {rules}. Make the algorithm with the same optimizer.")
    for key, of_what in (("parameters", "the names of what is trained"), ("frozen", "which of them are frozen")):
        found = state.get(key, current[key])  # older files have neither
        is_plain = isinstance(found, list) and all(isinstance(item, str | bool) for item in found)
        if not is_plain or found != current[key]:
            hint = f"{AS_SAVED}; freeze layers after loading."
            raise CheckpointError(f"{name}.{key}: {of_what} differs from when it was saved. {hint}")


def check_of_plan(name: str, state: State, scalar: Tensor, gathered: Tensor) -> None:
    """Check what a state holds where a plan asked for it; a state of another plan may be loaded.

    Args:
        name: what the text of an error begins with.
        state: the state.
        scalar, gathered: tensors like those that it may hold.

    Raises:
        CheckpointError: something is of another shape, or no count.
    """
    for key, like in (dict.fromkeys(COUNTS, scalar) | {"gathered": gathered}).items():
        if key in state:
            check_like(f"{name}.{key}", like, state[key], f"{AS_SAVED}.")
        if key in state and key in COUNTS and not (state[key] > 0 if key == "loss_scale" else state[key] >= 0):
            rule = "a positive number" if key == "loss_scale" else "a non-negative number"
            raise CheckpointError(f"{name}.{key}: expected {rule}, found {float(state[key])}")
    num_gathered = state.get("num_gathered", 0)
    if not is_int(num_gathered) or num_gathered < 0 or (num_gathered > 0) != ("gathered" in state):
        raise CheckpointError(f"{name}.num_gathered: expected how many are gathered, found {readable(num_gathered)}")
