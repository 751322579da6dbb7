"""Weighted means of named numbers. Tensors stay on their device, without a wait, until they are read."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from rltrainer.validation.field_rules import PositiveFloat

Number = Tensor | float
MERGE_AT = 256
"""So many parts are merged at once: a merge costs a few calls, whatever their number."""
T = TypeVar("T")


def gather(parts: list[T], part: T, merge: Callable[[list[T]], T]) -> None:
    """Append a part to a list that stays short: many are merged into one."""
    parts.append(part)
    if len(parts) >= MERGE_AT:
        parts[:] = [merge(parts)]


@dataclass
class Part:
    """Named numbers (scalar tensors or floats), the weight of all, and other weights of some."""

    values: dict[str, Number]
    weight: PositiveFloat = 1
    weights: dict[str, PositiveFloat] = field(default_factory=dict)


@torch.no_grad()  # a number that was not detached must not hold its graph for the rest of the run
def merge(parts: Sequence[Part]) -> Part:
    """Return the weighted means of parts; a name that some of them lack is a mean over the others."""
    means: dict[str, Number] = {}
    others: dict[str, float] = {}
    weight = sum(part.weight for part in parts)
    for name in dict.fromkeys(itertools.chain.from_iterable(part.values for part in parts)):
        having = [part for part in parts if name in part.values]
        weights = [part.weights.get(name, part.weight) for part in having]
        means[name] = _mean([part.values[name] for part in having], weights)
        if (total := sum(weights)) != weight:
            others[name] = total
    return Part(means, weight, others)


def floats(values: Mapping[str, Number]) -> dict[str, float]:
    """Return numbers as floats; waits for a device, once."""
    far = [name for name, value in values.items() if isinstance(value, Tensor) and not value.is_cpu]
    if len(far) > 1:
        read = torch.stack([torch.as_tensor(values[name]).double() for name in far]).tolist()
        values = dict(values) | dict(zip(far, read, strict=True))
    return {name: float(value) for name, value in values.items()}


def _mean(values: list[Number], weights: list[float]) -> Number:
    """Return the weighted mean, in one call of torch: there may be hundreds of values."""
    if not isinstance(values[0], Tensor):
        return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
    newest = values[-1]
    if isinstance(newest, Tensor) and newest.device != values[0].device:  # the older ones come from a checkpoint
        values = [torch.as_tensor(value, device=newest.device) for value in values]
    scalars = [x if isinstance(x, Tensor) and not x.dim() else torch.as_tensor(x).reshape(()) for x in values]
    stacked = torch.stack(scalars)
    if len(set(weights)) == 1:
        return stacked.mean()
    weight = torch.tensor(weights, dtype=stacked.dtype).to(stacked.device, non_blocking=True)
    return stacked @ weight / weight.sum()
