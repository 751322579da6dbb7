"""Parts of an algorithm, the objects that hold its state: one check and one load for each kind."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rltrainer.errors import CheckpointError, ParamsError, readable
from rltrainer.nets.module_state import AS_SAVED, IncompatibleKeys, check_module, fitting_module_state
from rltrainer.nets.weight_dtype import convert, set_weight_dtype
from rltrainer.schedules import ScheduledValue
from rltrainer.seeding import check_generator, set_generator
from rltrainer.state.codec import check_like
from rltrainer.types import State
from rltrainer.updates.optimizer import Optimizer

Part = nn.Module | Optimizer | Tensor | torch.Generator
PARTS = (nn.Module, Optimizer, Tensor, torch.Generator)
_OF_OUR_GENERATOR = "Draw from self.generator."
_NEVER_SAVED = {
    torch.optim.Optimizer: "Use self.make_optimizer(params, name=module); any torch.optim optimizer goes into the "
    "params' `optimizer`.",
    torch.optim.lr_scheduler.LRScheduler: "Give the params' `lr` a schedule of progress, such as LinearSchedule.",
    np.random.Generator: _OF_OUR_GENERATOR,
    random.Random: _OF_OUR_GENERATOR,
}
"""Remedies, by the kind of object that an attribute must not hold."""


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
    """Raise a `CheckpointError` that begins with `name` unless a whole state fits a part."""
    if isinstance(part, torch.Generator):
        check_generator(name, part, saved)
    elif isinstance(part, Tensor):
        check_like(name, part, saved, AS_SAVED)
    elif not isinstance(saved, dict):
        raise CheckpointError(f"{name}: expected a mapping, found {readable(saved)}")
    elif isinstance(part, Optimizer):
        part.check_state_dict(name, saved)
    else:
        check_module(name, part, saved)


@torch.no_grad()
def load_parts(parts: Mapping[str, Part], state: State) -> None:
    """Copy checked states into parts, which cannot fail."""
    for name, part in parts.items():
        if isinstance(part, torch.Generator):
            set_generator(part, state[name])
        elif isinstance(part, Tensor):
            part.copy_(state[name])
        else:
            part.load_state_dict(state[name])


def fitting_state(parts: Mapping[str, Part], saved: State) -> tuple[State, IncompatibleKeys]:
    """Return a whole state of parts, the saved one where that fits, and the names of what was left out.

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


def check_all_is_saved(name: str, attributes: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise a `ParamsError` if an algorithm's attributes hold a module, optimizer, tensor or generator that is unsaved.

    The text names the attribute of the algorithm `name`, and says where to put it.
    """
    known = {id(value) for value in attributes.values() if isinstance(value, PARTS)}
    for part in saved.values():
        if isinstance(part, nn.Module):
            known.update(map(id, (*part.modules(), *part.parameters(), *part.buffers())))
    for attribute, value in attributes.items():
        for path, item in _items(attribute, value):
            hint = next((hint for kind, hint in _NEVER_SAVED.items() if isinstance(item, kind)), None)
            if isinstance(item, PARTS) and id(item) not in known:
                hint = "Assign it to an attribute of its own, modules also to an nn.ModuleList."
            if hint is not None:
                text = f"a {type(item).__name__} here is not saved, so a resumed run would continue without it"
                raise ParamsError(f"{name}.{path}: {text}. {hint}")


def _items(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value, or the items of a list, tuple, set or dict, each with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _items(f"{path}[{key!r}]", item)
    elif isinstance(value, list | tuple | set | frozenset):
        for i, item in enumerate(value):
            yield from _items(f"{path}[{i}]", item)
    else:
        yield path, value
