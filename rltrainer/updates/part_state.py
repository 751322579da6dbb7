"""Parts of an algorithm: one check and one load per kind, so that loading a state cannot fail half-way; formats."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rltrainer.errors import CheckpointError, readable
from rltrainer.nets.module_state import AS_SAVED, IncompatibleKeys, check_module, fitting_module_state
from rltrainer.nets.weight_dtype import convert, set_weight_dtype
from rltrainer.seeding import check_generator, set_generator
from rltrainer.state.typed_state import check_count, check_like
from rltrainer.types import State
from rltrainer.updates.optimizer import Optimizer
from rltrainer.updates.scheduled_value import ScheduledValue

Part = nn.Module | Optimizer | Tensor | torch.Generator


def set_part_dtype(part: object, dtype: torch.dtype) -> None:
    """Bring an attribute of an algorithm to the format of weights, if it is a part or follows a schedule."""
    if isinstance(part, Optimizer | ScheduledValue):
        part.set_weight_dtype(dtype)
    elif isinstance(part, nn.Module):
        set_weight_dtype(part, dtype)
    elif isinstance(part, Tensor):
        convert(part, dtype)


def part_state(part: Part) -> Any:
    """Return the state of a part; its tensors share the part's memory."""
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part if isinstance(part, Tensor) else dict(part.state_dict())


def check_part(name: str, part: Part, saved: Any) -> None:
    """Check a whole state of a part before it is loaded.

    Raises:
        CheckpointError: it does not fit; the text begins with `name`.
    """
    if isinstance(part, torch.Generator):
        check_generator(name, part, saved)
    elif isinstance(part, Tensor):
        check_like(name, part, saved, AS_SAVED)
        check_count(name, saved)
    elif not isinstance(saved, dict):
        raise CheckpointError(f"{name}: expected a mapping, found {readable(saved)}")
    elif isinstance(part, Optimizer):
        part.check_state_dict(name, saved)
    else:
        check_module(name, part, saved)


def load_part(part: Part, saved: Any) -> None:
    """Copy a checked state into a part."""
    if isinstance(part, torch.Generator):
        set_generator(part, saved)
    elif isinstance(part, Tensor):
        with torch.no_grad():
            part.copy_(saved)
    else:
        part.load_state_dict(saved)


def load_parts(parts: Mapping[str, Part], state: State) -> None:
    """Copy checked states into parts."""
    for name, part in parts.items():
        load_part(part, state[name])


def fitting_state(parts: Mapping[str, Part], saved: State) -> tuple[State, IncompatibleKeys]:
    """Return a whole state of parts, what was saved where that fits, and the names of what was left out.

    Of networks each tensor is taken that fits; optimizers and generators are taken as a whole.
    """
    state, left_out = {}, IncompatibleKeys([], [], [])
    for name, part in parts.items():
        if name not in saved:
            state[name] = part_state(part)
            left_out.missing_keys.append(name)
        elif isinstance(part, nn.Module):
            state[name] = fitting_module_state(part, saved[name], f"{name}.", left_out)
        else:
            state[name] = saved[name]
            try:
                check_part(name, part, saved[name])
            except CheckpointError:
                state[name] = part_state(part)
                left_out.mismatched_keys.append(name)
    left_out.unexpected_keys.extend(name for name in saved if name not in parts)
    return state, left_out
