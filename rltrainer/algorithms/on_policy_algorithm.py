"""The skeleton of an on-policy update: process the rollout once, then gradient steps on minibatches of it."""

import dataclasses
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rltrainer.algorithms.algorithm import Algorithm
from rltrainer.algorithms.algorithm_params import AlgorithmParams
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.nets.modes import EvalMode
from rltrainer.nets.policy import Policy
from rltrainer.nets.target import Accumulation
from rltrainer.nets.weight_dtype import cast
from rltrainer.tree import Tree, leaves, map_tree, rebuild
from rltrainer.types import Rollout, UpdateResult
from rltrainer.updates.compiled_step import add_norms


@dataclasses.dataclass(slots=True)
class OnPolicyBatch:
    """A rollout as an algorithm sees it [T, N]; flattened, its cells [M], or a minibatch of them [B].

    Args:
        obs: tree [T, N, ...], normalised.
        action: [T, N, ...], as sampled.
        advantage: [T, N].
        return_: [T, N], what the critic regresses to.
        value: [T, N], the critic's value when the data was collected.
        log_prob: [T, N], log-probability of the action when it was collected.
        weight: [T, N], 1, or 0 for what does not count: cells that are not valid, and padding.
        extra: further tensors [T, N, ...], those of the rollout.
    """

    obs: Tree
    action: Tensor
    advantage: Tensor
    return_: Tensor
    value: Tensor
    log_prob: Tensor
    weight: Tensor
    extra: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    def flatten(self) -> Self:
        """Return the cells one after another [T * N], time first."""
        return self.map(lambda x: x.flatten(0, 1))

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to all tensors."""
        return type(self)(**{name: map_tree(function, getattr(self, name)) for name in self.names()})

    def gather(self, index: Tensor, shape: tuple[int, int]) -> list[Self]:
        """Return the cells at `index` [K * B], of flattened samples, as K minibatches of shape (K, B)."""
        columns = {name: _split(getattr(self, name), index, shape) for name in self.names()}
        return [type(self)(**dict(zip(columns, parts, strict=True))) for parts in zip(*columns.values(), strict=True)]

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the fields."""
        return [field.name for field in dataclasses.fields(cls)]


class OnPolicyAlgorithm(Algorithm):
    """An algorithm that learns from what its current policy has just collected.

    A subclass says what a rollout means (`process`) and what one gradient step does (`gradient_step`); if need be, what
    is done before the first of them (`before_batches`), and what each of them is given (`batches`).
    """

    columns_if_stale: ClassVar[tuple[str, ...] | None] = None
    """Names of the columns that its updates read, too, where older weights than the policy's may have acted.

    None takes all data for what the policy of now has done."""

    def __init__(self, policy: Policy, params: AlgorithmParams | None = None) -> None:
        super().__init__(policy, params)
        self._eval_mode = EvalMode(policy)

    @abstractmethod
    def process(self, rollout: Rollout) -> OnPolicyBatch:
        """Turn a rollout into samples [T, N]: values, advantages, returns.

        Called once per update, without gradients, and in eval mode, as the policy acted.
        """

    @abstractmethod
    def gradient_step(self, batch: OnPolicyBatch) -> UpdateResult:
        """Take one gradient step on a minibatch; every mean over it is weighted by `batch.weight`."""

    def columns_read(self, has_stale_data: bool = False) -> tuple[str, ...]:
        """Return the names of the columns that the updates read, of data that may lag behind the policy or does not."""
        return self.columns + (self.columns_if_stale or () if has_stale_data else ())

    def before_batches(self, samples: OnPolicyBatch) -> Mapping[str, Tensor]:
        """Do what is done once with all samples [T, N], and return what to log of it; called without gradients."""
        return {}

    def check_batch_size(self, batch_size: int | None, num_rows: int | None, num_envs: int = 1) -> None:
        """Check that minibatches of this size can be made of rollouts; a trainer asks before it trains.

        Args:
            batch_size: see `update`.
            num_rows: T, steps of each env in a rollout; None if that varies.
            num_envs: N, the number of envs.

        Raises:
            ParamsError: they cannot.
        """

    def batches(self, samples: OnPolicyBatch, batch_size: int | None, repeat: int) -> Iterator[OnPolicyBatch]:
        """Yield what each gradient step of an update is given: by default minibatches of cells in random order.

        The next one is asked for when the step before was taken; where steps run as a CUDA graph, up to 32 are asked
        for at once. Each size is a shape to compile.

        Args:
            samples: what `process` returned [T, N].
            batch_size: see `update`.
            repeat: see `update`.
        """
        cells, size = samples.flatten(), samples.weight.numel()  # no matter how many of them are valid
        if self.plan.varies_in_length:
            size = 1 << (max(int(samples.weight.count_nonzero()), 1) - 1).bit_length()  # the next power of two
        size = size if batch_size is None else min(batch_size, size)
        yield from minibatches(cells, size, self.generator, repeat)

    def goes_on(self, batch: OnPolicyBatch) -> bool:
        """Return whether to take this step and those behind it; an algorithm may end an update step early."""
        return True

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
        if (dtype := self.policy.weight_dtype) is not torch.float32:
            rollout = cast(rollout, dtype)
        with torch.no_grad():
            with self._eval_mode.while_on():
                samples = self.process(rollout)
            measured = self.before_batches(samples)
        batches = itertools.takewhile(self.goes_on, self.batches(samples, batch_size, repeat))
        steps: Iterator[tuple[Any, ...]] = ((batch,) for batch in batches)
        if self.accumulation is not None:
            steps = self.accumulation.grouped(steps)
        results = self._compiled_step.run(steps)
        if self.accumulation is not None:
            self._apply_rest(self.accumulation, results)
        self.observe(rollout)
        self._end_update(results)
        result = UpdateResult.mean(results)
        return dataclasses.replace(result, metrics={**result.metrics, **measured}) if results and measured else result

    def _apply_rest(self, accumulation: Accumulation, results: list[UpdateResult]) -> None:
        """Apply what the last steps have gathered: the next ones are on data of another policy."""
        for optimizer in self._optimizers():
            optimizer.apply_rest()
        accumulation.num_steps = 0
        if results and self.plan.update.tells_norms:
            add_norms(results[-1], self.optimizers_by_loss())


def check_standardized(name: str, field: str, batch_size: int | None, num_cells: int | None) -> None:
    """Check that no minibatch is left with one cell, which standardising makes 0.

    Args:
        name: of the algorithm.
        field: of its params, by class and name, which says that minibatches are standardised.
        batch_size: see `OnPolicyAlgorithm.update`.
        num_cells: of a rollout; None if that varies.

    Raises:
        ParamsError: some would be.
    """
    cells = 3 if num_cells is None else num_cells  # an odd number, of which pairs leave one
    if cells == 0 or cells // math.ceil(cells / (batch_size or cells)) > 1:
        return
    of_what = "" if num_cells is None else f" of the rollout's {num_cells}"
    rule = f"must leave no minibatch with one cell{of_what}, as {field}=True makes its advantage 0: no actor is trained"
    hint = f"Take larger minibatches, collect more, or set {field}=False."
    raise ParamsError(field_error_text(name, "batch_size", rule, batch_size, hint))


def minibatches(
    cells: OnPolicyBatch, batch_size: int, generator: torch.Generator, repeat: int = 1
) -> Iterator[OnPolicyBatch]:
    """Yield all cells [M] that count in random order, in minibatches whose sizes differ by at most one.

    Each is padded to `batch_size` with cells of weight 0, so that every gradient step has the same shape.
    """
    num_cells = int(cells.weight.count_nonzero())
    if num_cells == 0:
        return
    if len(cells.weight) == batch_size:  # a mean over everything knows no order, and has its padding
        yield from itertools.repeat(cells, repeat)
        return
    counted = None if num_cells == len(cells.weight) else cells.weight.nonzero().squeeze(1)
    for index, is_real in shuffled(num_cells, batch_size, generator, repeat):
        place = index.flatten() if counted is None else counted[index.flatten()]
        for k, batch in enumerate(cells.gather(place, (len(index), batch_size))):
            if is_real is not None:
                batch.weight = batch.weight * is_real[k]
            yield batch


def shuffled(num: int, batch_size: int, generator: torch.Generator, repeat: int) -> list[tuple[Tensor, Tensor | None]]:
    """Share out 0 .. num - 1 in random order among K batches, whose sizes differ by at most one, several times.

    All at once, so that what is drawn does not depend on where an update step ends.

    Returns:
        index [K, B], and which of them are real [K, B]: the others are repetitions that pad a batch; None if all are.
    """
    num_batches = math.ceil(num / batch_size)
    orders = [torch.randperm(num, generator=generator, device=generator.device) for _ in range(repeat)]
    if num == num_batches * batch_size:
        return [(order.view(num_batches, batch_size), None) for order in orders]
    # Column j of batch k is real for j < size_k.
    size = torch.full((num_batches, 1), num // num_batches, device=generator.device)
    size[: num % num_batches] += 1
    column = torch.arange(batch_size, device=generator.device)
    # No `padded[real] = order`: a device would be asked how many are real, and waited for.
    place, is_real = (size.cumsum(0) - size + column).clamp_(max=num - 1), column < size
    return [(order[place], is_real) for order in orders]


def _split(tree: Tree, index: Tensor, shape: tuple[int, int]) -> Sequence[Tree]:
    """Return what belongs to each of K minibatches of shape (K, B), in views that one call makes."""
    if isinstance(tree, dict) and not tree:  # no extras
        return [{} for _ in range(shape[0])]
    split: list[Sequence[Tree]] = [leaf.index_select(0, index).unflatten(0, shape).unbind() for leaf in leaves(tree)]
    if isinstance(tree, Tensor):
        return split[0]
    return [rebuild(tree, parts) for parts in zip(*split, strict=True)]
