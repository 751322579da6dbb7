"""The batch that an on-policy update learns from, and the minibatches that it is split into."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from rltrainer.tree import Tree, leaves, map_tree, rebuild


class Split(NamedTuple):
    """The way in which steps become minibatches whose sizes differ by at most one."""

    num_steps: int
    size: int
    """Rows of each: steps, and others of weight 0, so that every gradient step has the same shape."""
    num_batches: int
    most_batches: int
    """Their number if all steps are valid."""


@dataclasses.dataclass(slots=True)
class OnPolicyBatch:
    """A rollout with advantages, all fields [T, N, ...]; flattened, its steps [M], or a minibatch of them [B]."""

    obs: Tree  # normalised
    action: Tensor  # as sampled
    advantage: Tensor
    return_: Tensor  # the target of the critic
    value: Tensor  # of the critic when the data was collected, as is log_prob
    log_prob: Tensor
    weight: Tensor  # 1, or 0 for padding and steps that are not valid
    extra: dict[str, Tree] = dataclasses.field(default_factory=dict)  # the rollout's, and an algorithm's own

    def flatten(self) -> Self:
        """Return the steps one after another [T * N], time first."""
        return self.map(lambda x: x.flatten(0, 1))

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to all tensors."""
        return type(self)(**{name: map_tree(function, value) for name, value in self.fields().items()})

    def fields(self) -> dict[str, Tree]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class Minibatches(Iterator[OnPolicyBatch]):
    """The steps of a flattened batch [M] in random order, several times, as K minibatches [B] for each order.

    Each of `orders` has an index [K, B], and which of its places are real [K, B]: the others pad a minibatch; None if
    all are real. Iterating, once, gathers all minibatches of an order together; compiled code gathers one by `at`.
    """

    def __init__(self, flat: OnPolicyBatch, split: Split, generator: torch.Generator, repeat: int) -> None:
        self.flat, self._most = flat, split.most_batches * repeat
        self.orders = shuffled(split, generator, repeat)
        if split.num_steps not in (0, len(flat.weight)):
            counted = flat.weight.nonzero().squeeze(1)
            self.orders = [(counted[index], is_real) for index, is_real in self.orders]
        self._rest = _gathered(flat, self.orders)

    def __len__(self) -> int:
        return sum(len(index) for index, _ in self.orders)

    def __iter__(self) -> Iterator[OnPolicyBatch]:
        return self._rest  # directly, which saves a call for each minibatch

    def __next__(self) -> OnPolicyBatch:
        return next(self._rest)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return the indexes of all orders, and weights, with as many rows as there may ever be [most, B]."""
        # One number of rows, so that one compiled loop serves all updates.
        num, shape = len(self), (self._most, self.orders[0][0].shape[1])
        index, weight = self.flat.weight.new_zeros(shape, dtype=torch.int64), self.flat.weight.new_ones(shape)
        torch.cat([each for each, _ in self.orders], out=index[:num])
        if self.orders[0][1] is not None:
            weight[:num] = torch.cat([is_real for _, is_real in self.orders if is_real is not None])
        return index, weight

    @staticmethod
    def at(k: Tensor, flat: OnPolicyBatch, index: Tensor, weight: Tensor, *more: Tensor) -> tuple[Any, ...]:
        """Return the minibatch at row `k` [1] of an index [K, B], with weights [K, B]; and more rows [K, ...]."""
        place = index.index_select(0, k).squeeze(0)
        batch = flat.map(lambda x: x.index_select(0, place))
        batch.weight = batch.weight * weight.index_select(0, k).squeeze(0)
        return batch, *(x.index_select(0, k).squeeze(0) for x in more)


def minibatches(flat: OnPolicyBatch, split: Split, generator: torch.Generator, repeat: int) -> Iterator[OnPolicyBatch]:
    """Return the steps of [M] that have a weight in random order, as minibatches; or all of them as they are."""
    if split.num_batches == 1 and len(flat.weight) == split.size:  # a mean over everything needs no order, no padding
        return itertools.repeat(flat, repeat)
    return Minibatches(flat, split, generator, repeat)


def _gathered(flat: OnPolicyBatch, orders: list[tuple[Tensor, Tensor | None]]) -> Iterator[OnPolicyBatch]:
    for index, is_real in orders:
        columns = {name: _split(value, index) for name, value in flat.fields().items()}
        for k, each in enumerate(zip(*columns.values(), strict=True)):
            batch = type(flat)(**dict(zip(columns, each, strict=True)))
            if is_real is not None:
                batch.weight = batch.weight * is_real[k]
            yield batch


def shuffled(split: Split, generator: torch.Generator, repeat: int) -> list[tuple[Tensor, Tensor | None]]:
    """Split 0 .. num_steps - 1 in random order into K batches whose sizes differ by at most one, several times.

    Each has an index [K, B], and which of them are real [K, B]: the others pad a batch; None if all are real.
    """
    # All at once, so that the random numbers do not depend on where an update step ends.
    num, batch_size, num_batches, _ = split
    orders = [torch.randperm(num, generator=generator, device=generator.device) for _ in range(repeat)]
    if num == num_batches * batch_size:
        return [(order.view(num_batches, batch_size), None) for order in orders]
    # Column j of batch k is real for j < size_k.
    size = torch.full((num_batches, 1), num // num_batches, device=generator.device)
    size[: num % num_batches] += 1
    column = torch.arange(batch_size, device=generator.device)
    # No `padded[real] = order`: a device would be asked how many are real, and waited for.
    place, is_real = (size.cumsum(0) - size + column).clamp_(max=max(num - 1, 0)), column < size
    return [(order[place] if num else place, is_real) for order in orders]


def power_of_two(number: int) -> int:
    """Return the lowest power of two from this number on."""
    return 1 << (max(number, 1) - 1).bit_length()


def _split(tree: Tree, index: Tensor) -> list[Tree]:
    """Return the trees of the K minibatches at an index [K, B], as views that one call makes."""
    if isinstance(tree, dict) and not tree:  # no extras
        return [{} for _ in index]
    place = index.flatten()
    split = [x.index_select(0, place).unflatten(0, index.shape).unbind() for x in leaves(tree)]
    if isinstance(tree, Tensor):
        return list(split[0])
    return [rebuild(tree, parts) for parts in zip(*split, strict=True)]
