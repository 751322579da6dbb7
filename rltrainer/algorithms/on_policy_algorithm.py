"""The skeleton of an on-policy update: process the rollout once, then gradient steps on minibatches of it."""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from rltrainer.algorithms.algorithm import Algorithm
from rltrainer.tree import Tree, leaves, rebuild
from rltrainer.types import Rollout, UpdateResult


@dataclasses.dataclass(slots=True)
class Samples:
    """The cells of a rollout [M], or a minibatch of those that count [B]; observations are normalised.

    Args:
        obs: tree [M, ...].
        action: [M, ...], as sampled.
        advantage: [M].
        return_: [M], what the critic regresses to.
        value: [M], the critic's value when the data was collected.
        log_prob: [M], log-probability of the action when it was collected.
        weight: [M], 1, or 0 for what does not count: cells that are not valid, and padding.
        extra: further tensors [M, ...], those of the rollout.
    """

    obs: Tree
    action: Tensor
    advantage: Tensor
    return_: Tensor
    value: Tensor
    log_prob: Tensor
    weight: Tensor
    extra: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    def gather(self, index: Tensor, shape: tuple[int, int]) -> list[Self]:
        """Return the cells at `index` [K * B] as K minibatches of shape (K, B)."""
        names = [field.name for field in dataclasses.fields(self)]
        columns = [_split(getattr(self, name), index, shape) for name in names]
        return [type(self)(**dict(zip(names, parts, strict=True))) for parts in zip(*columns, strict=True)]


class OnPolicyAlgorithm(Algorithm):
    """An algorithm that learns from what its current policy has just collected.

    A subclass says what a rollout means (`process`) and what one gradient step does (`gradient_step`).
    """

    @abstractmethod
    def process(self, rollout: Rollout) -> Samples:
        """Turn a rollout into samples: values, advantages, returns. Called once per update, without gradients."""

    @abstractmethod
    def gradient_step(self, batch: Samples) -> UpdateResult:
        """Take one gradient step on a minibatch; every mean over it is weighted by `batch.weight`."""

    def measure(self, samples: Samples) -> Mapping[str, Tensor]:
        """Return what to log of the samples besides the losses. Called once per update, without gradients."""
        return {}

    def _step(self, *args: Any) -> UpdateResult:
        return self.gradient_step(*args)

    def update(self, rollout: Rollout, batch_size: int | None, repeat: int) -> UpdateResult:
        """Update the policy from one rollout.

        Args:
            rollout: what was collected with the current policy [T, N].
            batch_size: cells per gradient step, at most those of the rollout; None takes the whole rollout.
            repeat: how many times each cell is used.

        Returns:
            metrics averaged over all `repeat * ceil(M / batch_size)` gradient steps.

        Raises:
            NonFiniteError: a gradient was not finite; that step was not applied. See `check_faults`.
        """
        self._begin_update()
        with torch.no_grad():
            samples = self.process(rollout)
            measured = self.measure(samples)
        size = self._num_cells(rollout)
        size = size if batch_size is None else min(batch_size, size)
        steps = self._take_steps(
            (batch,) for _ in range(repeat) for batch in minibatches(samples, size, self.generator)
        )
        self.observe(rollout)
        self._end_update()
        result = UpdateResult.mean(steps)
        return dataclasses.replace(result, metrics={**result.metrics, **measured}) if steps and measured else result

    def _num_cells(self, rollout: Rollout) -> int:
        """Return the size of a minibatch that takes the whole rollout; each size is a shape to compile."""
        if not self.plan.rollouts_vary:
            return rollout.valid.numel()  # no matter how many of them are valid
        return 1 << (max(int(rollout.valid.count_nonzero()), 1) - 1).bit_length()  # the next power of two


def minibatches(samples: Samples, batch_size: int, generator: torch.Generator) -> Iterator[Samples]:
    """Yield all samples that count in random order, in minibatches whose sizes differ by at most one.

    Each is padded to `batch_size` with cells of weight 0, so that every gradient step has the same shape.
    """
    num_samples = int(samples.weight.count_nonzero())
    if num_samples == 0:
        return
    if len(samples.weight) == batch_size:  # a mean over everything knows no order, and has its padding
        yield samples
        return
    num_batches = math.ceil(num_samples / batch_size)
    index = torch.randperm(num_samples, generator=generator, device=generator.device)
    if num_samples < len(samples.weight):
        index = samples.weight.nonzero().squeeze(1)[index]
    if num_samples == num_batches * batch_size:
        yield from samples.gather(index, (num_batches, batch_size))
        return
    # Column j of batch k is real for j < size_k; the padding repeats another cell that counts, and weighs nothing.
    size = torch.full((num_batches, 1), num_samples // num_batches, device=index.device)
    size[: num_samples % num_batches] += 1
    real = torch.arange(batch_size, device=index.device) < size
    # No `padded[real] = index`: a device would be asked how many cells are real, and waited for.
    position = size.cumsum(0) - size + torch.arange(batch_size, device=index.device)
    padded = index[position.clamp_(max=num_samples - 1)]
    for batch, is_real in zip(samples.gather(padded.flatten(), (num_batches, batch_size)), real, strict=True):
        batch.weight = batch.weight * is_real
        yield batch


def _split(tree: Tree, index: Tensor, shape: tuple[int, int]) -> Sequence[Tree]:
    """Return what belongs to each of K minibatches of shape (K, B), in views that one call makes."""
    if isinstance(tree, dict) and not tree:  # no extras
        return [{} for _ in range(shape[0])]
    split: list[Sequence[Tree]] = [leaf.index_select(0, index).unflatten(0, shape).unbind() for leaf in leaves(tree)]
    if isinstance(tree, Tensor):
        return split[0]
    return [rebuild(tree, parts) for parts in zip(*split, strict=True)]
