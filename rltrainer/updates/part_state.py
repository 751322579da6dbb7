"""States of parts: one check and one load per kind, so that loading a state cannot fail half-way."""

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from rltrainer.errors import CheckpointError
from rltrainer.nets.normalizer import RunningMoments
from rltrainer.nets.unit_box import UnitBoxPolicy
from rltrainer.seeding import check_generator, set_generator
from rltrainer.typed_state import check_like
from rltrainer.types import State
from rltrainer.updates.optimizer import Optimizer

Part = nn.Module | Optimizer | Tensor | torch.Generator
AS_SAVED = "Build the networks as they were when saved."


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
    elif not isinstance(saved, dict):
        raise CheckpointError(f"{name}: expected a mapping, found {saved!r}")
    elif isinstance(part, Optimizer):
        part.check_state_dict(name, saved)
    else:
        _check_module(name, part, saved)


def load_part(part: Part, saved: Any) -> None:
    """Copy a checked state into a part."""
    if isinstance(part, torch.Generator):
        set_generator(part, saved)
    elif isinstance(part, Tensor):
        with torch.no_grad():
            part.copy_(saved)
    else:
        part.load_state_dict(saved)


def _check_module(name: str, module: nn.Module, saved: State) -> None:
    own = module.state_dict()
    for key in [*own, *saved]:
        if key not in saved or key not in own:
            where = "saved state" if key not in saved else "policy"
            raise CheckpointError(f"{name}.{key}: missing in the {where}. {AS_SAVED}")
        if key.endswith("_extra_state"):
            _try_extra_state(f"{name}.{key}", module.get_submodule(key[: -len("._extra_state")]), saved[key])
        else:
            check_like(f"{name}.{key}", own[key], saved[key], AS_SAVED)
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(part, RunningMoments):
            for key in (f"{prefix}var", f"{prefix}count"):
                if (saved[key] < 0).any():
                    raise CheckpointError(f"{name}.{key}: is negative")
        problem = part.other_bounds(saved, prefix) if isinstance(part, UnitBoxPolicy) else None
        if problem:
            raise CheckpointError(f"{name}.{problem}. {AS_SAVED}")


def _try_extra_state(name: str, module: nn.Module, saved: Any) -> None:
    """Try it on a copy: what else a module keeps, and whether it likes a state, only the module knows."""
    try:
        cast(Any, copy.deepcopy(module)).set_extra_state(saved)
    except Exception as error:
        raise CheckpointError(f"{name}: does not fit ({type(error).__name__}: {error})") from error
