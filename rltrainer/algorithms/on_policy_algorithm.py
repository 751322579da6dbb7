"""On-policy updates: the rollout is processed once, then there are gradient steps on minibatches of it."""

import dataclasses
import functools
import itertools
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from rltrainer.algorithms.algorithm import Algorithm, AlgorithmParams
from rltrainer.errors import ParamsError
from rltrainer.functional.losses import standardize
from rltrainer.functional.moments import moments, pooled, standardized
from rltrainer.nets.modes import EvalMode
from rltrainer.nets.policy import Policy
from rltrainer.nets.weight_dtype import cast
from rltrainer.tree import Tree, leaves, map_tree, rebuild
from rltrainer.types import DenseRollout, Rollout, UpdateResult
from rltrainer.updates.planned_step import add_norms

STEPS_PER_UPDATE_GRAPH = 128
"""Largest number of gradient steps in the CUDA graph of a whole update: a longer one takes memory and gains little."""
MINIBATCHES_PER_EXCHANGE = 32
"""Largest number of minibatches that are made before the first of them is used, if there are several ranks."""


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
    extra: dict[str, Tensor] = dataclasses.field(default_factory=dict)  # the rollout's

    def flatten(self) -> Self:
        """Return the steps one after another [T * N], time first."""
        return self.map(lambda x: x.flatten(0, 1))

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to all tensors."""
        return type(self)(**{name: map_tree(function, value) for name, value in self.fields().items()})

    def gather(self, index: Tensor, is_real: Tensor | None) -> list[Self]:
        """Return the steps at `index` [K, B] of a flattened batch as K minibatches of B; see `shuffled`."""
        columns = {name: _split(value, index) for name, value in self.fields().items()}
        found = [type(self)(**dict(zip(columns, each, strict=True))) for each in zip(*columns.values(), strict=True)]
        if is_real is not None:
            for k, batch in enumerate(found):
                batch.weight = batch.weight * is_real[k]
        return found

    def fields(self) -> dict[str, Tree]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class OnPolicyAlgorithm(Algorithm):
    """Algorithm that learns from the rollout that its current policy has just collected.

    A subclass implements `process` (rollout to advantages) and `gradient_step`; it may override `before_batches`
    (before the first gradient step) and `batches` (the data of each of them).
    """

    columns_if_stale: ClassVar[tuple[str, ...] | None] = None
    """Names of further columns that its updates read if older weights than the policy's may have acted.

    None takes all data for the current policy's."""
    standardized_by: ClassVar[str | None] = None
    """Name of the params' flag for standardised advantages, if there is one."""
    waits_in_update: ClassVar[bool] = False
    """Flag of an algorithm whose `process` or `before_batches` waits for the device: no CUDA graph can hold them."""

    def __init__(self, policy: Policy, params: AlgorithmParams | None = None) -> None:
        super().__init__(policy, params)
        self._eval_mode = EvalMode(policy)

    @abstractmethod
    def process(self, rollout: Rollout) -> OnPolicyBatch:
        """Turn a rollout into values, advantages and returns [T, N], without gradients, and in eval mode."""

    @abstractmethod
    def gradient_step(self, batch: OnPolicyBatch) -> UpdateResult:
        """Take one gradient step on a minibatch; every mean over it is weighted by `batch.weight`."""

    def columns_read(self, has_stale_data: bool = False) -> tuple[str, ...]:
        """Return the names of the columns that the updates read."""
        return self.columns + (self.columns_if_stale or () if has_stale_data else ())

    def before_batches(self, samples: OnPolicyBatch) -> Mapping[str, Tensor]:
        """Use the whole batch [T, N] once, without gradients, and return metrics."""
        return {}

    def check_batch_size(self, batch_size: int | None, num_rows: int | None, num_envs: int = 1) -> None:
        """Raise a `ParamsError` unless rollouts [num_rows, num_envs] can be split into such minibatches.

        A trainer asks before it trains; `num_rows` is None if rollouts vary in length.
        """
        steps = 3 if num_rows is None else num_rows * num_envs  # an odd number: pairs leave one
        if not self.standardizes() or steps == 0 or steps // math.ceil(steps / (batch_size or steps)) > 1:
            return
        field = f"{type(self.params).__name__}.{self.standardized_by}"
        of_what = "" if num_rows is None else f" of the rollout's {steps}"
        effect = f"as {field}=True makes its advantage 0: no actor is trained"
        rule = f"must leave no minibatch with one step{of_what}, {effect}"
        hint = f"Take larger minibatches, collect more, or set {field}=False."
        raise ParamsError.about(type(self).__name__, "batch_size", rule, batch_size, hint)

    def standardizes(self) -> bool:
        """Return whether the advantages of each minibatch are standardised, which needs more than one step."""
        return self.standardized_by is not None and bool(getattr(self.params, self.standardized_by))

    def batches(self, samples: OnPolicyBatch, batch_size: int | None, repeat: int) -> Iterator[OnPolicyBatch]:
        """Yield the batch of each gradient step from the result of `process`: minibatches of steps in random order.

        Each batch is asked for after the step before it; with CUDA graphs, up to 32 are asked for at once.
        """
        yield from minibatches(samples.flatten(), self._split_of(samples, batch_size), self.generator, repeat)

    def _split_of(self, samples: OnPolicyBatch, batch_size: int | None) -> Split:
        num_steps = int(samples.weight.count_nonzero())  # once: the host waits for the device
        if self.standardizes():
            of_all = None if batch_size is None else batch_size * self.num_ranks
            self.check_batch_size(of_all, self._num_in_all(samples.weight) if self.num_ranks > 1 else num_steps)
        size = num_rows = samples.weight.numel()  # no matter how many of them are valid
        if self.plan.varies_in_length:
            # Each size is a shape to compile: the next power of two.
            size = _power_of_two(num_steps)
        return self._split(num_steps, size if batch_size is None else min(batch_size, size), num_rows)

    def _split(self, num_steps: int, size: int, num_rows: int) -> Split:
        """Split the valid steps of all rows into minibatches of at most this size.

        All ranks have equally many, which may be larger where other ranks have fewer valid steps.
        """
        of_all = torch.stack(self.plan.ranks.gather(torch.tensor([num_steps, size, num_rows]), is_equal=True))
        num_in_all, size_of_all, rows_of_all = of_all.sum(0).tolist()
        num_batches, most_batches = math.ceil(num_in_all / size_of_all), math.ceil(rows_of_all / size_of_all)
        needed = math.ceil(int(of_all[:, 0].max()) / max(num_batches, 1))
        return Split(num_steps, size if needed <= size else _power_of_two(needed), num_batches, most_batches)

    def _num_in_all(self, weight: Tensor) -> int:
        """Return the number of valid steps in the data of all ranks."""
        return int(self.plan.ranks.sum(weight.count_nonzero().view(1)))

    def _moments_of_all(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the moments [3, ...] of the numbers `x` [..., B] of all ranks; see `moments`."""
        return pooled(torch.stack(self.plan.ranks.gather(moments(x, weight), is_equal=True)))

    def _standardized(self, x: Tensor, weight: Tensor) -> Tensor:
        """Shift and scale `x` [B], with the numbers of all ranks, to mean 0 and standard deviation 1."""
        return standardize(x, weight) if self.num_ranks == 1 else standardized(x, self._moments_of_all(x, weight))

    def in_all(self, batch: OnPolicyBatch, of_all: Tensor) -> OnPolicyBatch:
        """Return a minibatch as a part of those of all ranks, given the moments [3] of their advantages."""
        return batch

    def _parts_in_all(self, advantage: Tensor, weight: Tensor) -> Tensor:
        """Return [K, 4] of minibatches [K, B], or [4] of one: the share in means over ranks, and the moments of all."""
        of_all = self._moments_of_all(advantage, weight)
        share = weight.double().sum(-1) * self.num_ranks / of_all[0]
        return torch.stack([share, *of_all], -1)

    def _with_parts(self, batches: Iterator[OnPolicyBatch]) -> Iterator[tuple[OnPolicyBatch, Tensor]]:
        """Yield each minibatch with the numbers [4] of `_parts_in_all`, by few exchanges.

        Where a callback may replace it, with none: its step makes them of what it gets.
        """
        if self.plan.callbacks.before is not None and self.plan.callbacks.replaces:
            yield from ((batch, batch.weight.new_empty(0)) for batch in batches)
        while some := list(itertools.islice(batches, MINIBATCHES_PER_EXCHANGE)):
            advantage, weight = (
                pad_sequence([getattr(each, name).flatten() for each in some], batch_first=True)
                for name in ("advantage", "weight")
            )
            yield from zip(some, self._parts_in_all(advantage, weight), strict=True)

    def continues(self) -> bool:
        """Return whether to take the next gradient step and those after it; an algorithm may end an update early."""
        return True

    def _step(self, batch: OnPolicyBatch, part: Tensor | None = None) -> UpdateResult:
        if part is None:
            return self.gradient_step(batch)
        if len(part) == 0:
            part = self._parts_in_all(batch.advantage.flatten(), batch.weight.flatten())
        share, of_all = part[0].to(batch.weight.dtype), part[1:]
        # A part that counts nothing must have means that are numbers, too.
        batch = dataclasses.replace(batch, weight=torch.where(share > 0, batch.weight, 1.0))
        self._share_step(share)
        result = self.gradient_step(self.in_all(batch, of_all))
        self._share_step(None)
        if isinstance(result, UpdateResult):  # else `_check_results` says so
            result.metrics = {name: value * share for name, value in result.metrics.items()}
        return result

    def _share_step(self, share: Tensor | None) -> None:
        for optimizer in self._optimizers():
            optimizer.share = share

    def update(self, rollout: Rollout, batch_size: int | None, repeat: int) -> UpdateResult:
        """Update the policy from one rollout [T, N] of it.

        Args:
            rollout: the data.
            batch_size: steps per gradient step, at most those of the rollout; None takes the whole rollout.
            repeat: number of times that each step is used.

        Returns:
            metrics averaged over all `repeat * ceil(M / batch_size)` gradient steps.

        Raises:
            NonFiniteError: a gradient was not finite; that step was not applied. See `check_faults`.
        """
        self._begin_update()
        if (dtype := self.policy.weight_dtype) is not torch.float32:
            rollout = cast(rollout, dtype)
        if isinstance(rollout, DenseRollout) and self._records(rollout, batch_size, repeat):
            if self.standardizes():
                self.check_batch_size(batch_size, rollout.reward.numel())
            given = (self.generator,), rollout.of_one_shape(), batch_size, repeat
            recorded = self._execution.run_sampled("rollout", self._process_and_step, (), *given)
            self.observe(rollout)
            self._end_update(recorded)
            return recorded[0]
        with torch.no_grad():
            samples, measured = self._processed(rollout)
        steps = partial(self._steps, samples, batch_size, repeat)
        found = self._looped(samples, batch_size, repeat, steps) if self._loops() else steps()
        results = [found] if isinstance(found, UpdateResult) else self._execution.run(found)
        if self.accumulation is not None:
            # Apply the gathered gradients of the last steps: the next ones are on data of another policy.
            for optimizer in self._optimizers():
                optimizer.apply_rest()
            self.accumulation.num_steps = 0
            if results and self.plan.update.logs_norms:
                add_norms(results[-1], self.optimizers_by_loss())
        self.observe(rollout)
        self._end_update(results)
        return self._merged(results, measured)

    def _steps(self, samples: OnPolicyBatch, batch_size: int | None, repeat: int) -> Iterator[tuple[Any, ...]]:
        """Return the arguments of each gradient step."""
        batches = self.batches(samples, batch_size, repeat)
        steps: Iterator[tuple[Any, ...]] = self._with_parts(batches) if self.num_ranks > 1 else zip(batches)
        steps = itertools.takewhile(lambda _: self.continues(), steps)
        return steps if self.accumulation is None else self.accumulation.grouped(steps)

    def _loops(self) -> bool:
        """Return whether the gradient steps may be one compiled loop."""
        goes_through = self.accumulation is None and not any(optimizer.can_stop for optimizer in self._optimizers())
        is_split = goes_through and not self.plan.varies_in_length and not self._own_methods()
        return is_split and self._is_split_at_random() and self._execution.can_loop

    def _own_methods(self) -> list[str]:
        """Return the names of a user's own methods, which may decide on the host what a graph would repeat."""
        names = ("process", "before_batches", "batches", "continues", "update")
        return [name for name in names if not getattr(self, name).__module__.startswith("rltrainer.")]

    def _is_split_at_random(self) -> bool:
        return type(self).batches is OnPolicyAlgorithm.batches

    def _looped(
        self, samples: OnPolicyBatch, batch_size: int | None, repeat: int, steps: Callable[[], Iterator[Any]]
    ) -> UpdateResult | Iterator[tuple[Any, ...]]:
        """Take the gradient steps as one compiled loop, which gathers their minibatches, or else return them."""
        flat, split = samples.flatten(), self._split_of(samples, batch_size)
        if (size := split.size) == len(flat.weight) or split.num_batches == 0:
            return steps()
        found = places(flat.weight, split, self.generator, repeat)
        # As many rows as there may be, so that one graph serves all updates.
        shape = split.most_batches * repeat, size
        index, weight = flat.weight.new_zeros(shape, dtype=torch.int64), flat.weight.new_ones(shape)
        num_batches = sum(len(each) for each, _ in found)
        torch.cat([each for each, _ in found], out=index[:num_batches])
        if found[0][1] is not None:
            weight[:num_batches] = torch.cat([is_real for _, is_real in found if is_real is not None])
        parts = []
        if self.num_ranks > 1:
            place = index[:num_batches]
            of_all = self._parts_in_all(flat.advantage[place], flat.weight[place] * weight[:num_batches])
            parts = [pad(of_all, (0, 0, 0, len(index) - num_batches))]
        result = self._execution.run_loop(num_batches, minibatch_at, flat, index, weight, *parts)
        return result or zip((batch for order in found for batch in flat.gather(*order)), *parts, strict=False)

    def _records(self, rollout: DenseRollout, batch_size: int | None, repeat: int) -> bool:
        """Return whether a CUDA graph may hold the whole update; the log names an addition that prevents it."""
        step, size = self._execution, rollout.reward.numel()
        num_steps = math.ceil(size / min(batch_size or size, size)) * repeat
        if not step.has_cuda_graph or self.waits_in_update or num_steps > STEPS_PER_UPDATE_GRAPH:
            return False
        if own := self._own_methods():
            reason = f"it has a method {own[0]} of its own"
        elif step.has_callbacks:
            reason = "a callback is given its batches"
        elif self.accumulation is not None:
            reason = "gradients are accumulated"
        elif any(optimizer.can_stop for optimizer in self._optimizers()):
            reason = "target_kl may end it"
        else:
            return self._is_split_at_random() and step.records_sampling and rollout.reward.device == self.device
        _say_once(f"{type(self).__name__}: an update is several CUDA graphs instead of one, as {reason}")
        return False

    def _process_and_step(
        self, run: Callable[[Any], list[UpdateResult]], rollout: DenseRollout, batch_size: int | None, repeat: int
    ) -> list[UpdateResult]:
        """Do what `update` does, without a look at a number of the device; see `Execution.run_sampled`."""
        with torch.no_grad():
            samples, measured = self._process(rollout)
        size = samples.weight.numel()
        each = min(batch_size or size, size)
        split = Split(size, each, math.ceil(size / each), math.ceil(size / each))
        results = run((batch,) for batch in minibatches(samples.flatten(), split, self.generator, repeat))
        self._check_results(results)
        return [self._merged(results, measured)]

    def _merged(self, results: list[UpdateResult], measured: Mapping[str, Tensor]) -> UpdateResult:
        """Return the result of an update from those of its steps and of `before_batches`."""
        self._measure(results)
        result = self._average_metrics(UpdateResult.mean(results))
        return dataclasses.replace(result, metrics={**result.metrics, **measured}) if results and measured else result

    def _measure(self, results: list[UpdateResult]) -> None:
        """Replace the results of steps by some with further metrics."""

    def _processed(self, rollout: Rollout) -> tuple[OnPolicyBatch, Mapping[str, Tensor]]:
        """Return the results of `process` and `before_batches`, compiled as steps are if rollouts have one shape."""
        if not isinstance(rollout, DenseRollout):
            return self._process(rollout)
        rollout = rollout.of_one_shape()  # not only for compiled code: another shape rounds otherwise
        if self.waits_in_update or not self._execution.compiles_functions:
            return self._process(rollout)
        compiled = self._execution.compiled("process", lambda x: (y := self.process(x), self.before_batches(y)))
        with self._eval_mode.while_on(), self.plan.ranks.in_graphs():
            found: tuple[OnPolicyBatch, Mapping[str, Tensor]] = compiled(rollout)
        return found

    def _process(self, rollout: Rollout) -> tuple[OnPolicyBatch, Mapping[str, Tensor]]:
        with self._eval_mode.while_on():
            samples = self.process(rollout)
        return samples, self.before_batches(samples)


def _power_of_two(number: int) -> int:
    """Return the lowest power of two from this number on."""
    return 1 << (max(number, 1) - 1).bit_length()


@functools.cache
def _say_once(text: str) -> None:
    logging.getLogger("rltrainer").info(text)


def minibatches(flat: OnPolicyBatch, split: Split, generator: torch.Generator, repeat: int) -> Iterator[OnPolicyBatch]:
    """Yield the steps of [M] that have a weight in random order, in minibatches."""
    if split.num_batches == 1 and len(flat.weight) == split.size:  # a mean over everything needs no order, no padding
        yield from itertools.repeat(flat, repeat)
        return
    for index, is_real in places(flat.weight, split, generator, repeat):
        yield from flat.gather(index, is_real)


def minibatch_at(k: Tensor, flat: OnPolicyBatch, index: Tensor, weight: Tensor, *more: Tensor) -> tuple[Any, ...]:
    """Return the steps of a flattened batch at row `k` [1] of an index [K, B], with weights [K, B]; and more rows."""
    place = index.index_select(0, k).squeeze(0)
    batch = flat.map(lambda x: x.index_select(0, place))
    batch.weight = batch.weight * weight.index_select(0, k).squeeze(0)
    return batch, *(x.index_select(0, k).squeeze(0) for x in more)


def places(weight: Tensor, split: Split, generator: torch.Generator, repeat: int) -> list[tuple[Tensor, Tensor | None]]:
    """Split the places in [M] that have a weight; see `shuffled`."""
    found = shuffled(split, generator, repeat)
    if split.num_steps in (0, len(weight)):
        return found
    counted = weight.nonzero().squeeze(1)
    return [(counted[index], is_real) for index, is_real in found]


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


def _split(tree: Tree, index: Tensor) -> Sequence[Tree]:
    """Return the trees of the K minibatches at an index [K, B], as views that one call makes."""
    if isinstance(tree, dict) and not tree:  # no extras
        return [{} for _ in index]
    place = index.flatten()
    split: list[Sequence[Tree]] = [x.index_select(0, place).unflatten(0, index.shape).unbind() for x in leaves(tree)]
    if isinstance(tree, Tensor):
        return split[0]
    return [rebuild(tree, parts) for parts in zip(*split, strict=True)]
