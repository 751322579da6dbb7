"""A look for state of an algorithm that a checkpoint would miss."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rltrainer.errors import ParamsError
from rltrainer.updates.optimizer import Optimizer

_SAVED = (nn.Module, Tensor, Optimizer, torch.Generator)
_OF_OUR_GENERATOR = "Draw from self.generator."
_NEVER_SAVED = {
    torch.optim.Optimizer: "Use self.make_optimizer(params, name=module); any torch.optim optimizer goes into the "
    "params' `optimizer`.",
    torch.optim.lr_scheduler.LRScheduler: "Give the params' `lr` a schedule of progress, such as LinearSchedule.",
    np.random.Generator: _OF_OUR_GENERATOR,
    random.Random: _OF_OUR_GENERATOR,
}
"""Remedies, by the kind of object that an attribute must not hold."""


def check_all_is_saved(name: str, attributes: dict[str, Any], saved: dict[str, Any]) -> None:
    """Look for modules, optimizers, tensors and generators that are not among what is saved.

    Args:
        name: the algorithm's class.
        attributes: what the algorithm holds.
        saved: those of them that are saved.

    Raises:
        ParamsError: there is one; the text names the attribute and says where to put it.
    """
    known = {id(value) for value in attributes.values() if isinstance(value, _SAVED)}
    for part in saved.values():
        if isinstance(part, nn.Module):
            known.update(map(id, (*part.modules(), *part.parameters(), *part.buffers())))
    for attribute, value in attributes.items():
        for path, item in _items(attribute, value):
            hint = next((hint for kind, hint in _NEVER_SAVED.items() if isinstance(item, kind)), None)
            if isinstance(item, _SAVED) and id(item) not in known:
                hint = "Assign it to an attribute of its own, modules also to an nn.ModuleList."
            if hint is not None:
                text = f"a {type(item).__name__} here is not saved, so a resumed run would go on without it"
                raise ParamsError(f"{name}.{path}: {text}. {hint}")


def _items(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value, or what is in it if it is a list, tuple, set or dict."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _items(f"{path}[{key!r}]", item)
    elif isinstance(value, list | tuple | set | frozenset):
        for i, item in enumerate(value):
            yield from _items(f"{path}[{i}]", item)
    else:
        yield path, value
