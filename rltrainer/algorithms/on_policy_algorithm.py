"""On-policy updates: the rollout is processed once, then there are gradient steps on minibatches of it."""

import dataclasses
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from rltrainer.algorithms.algorithm import Algorithm, AlgorithmParams
from rltrainer.algorithms.minibatches import Minibatches, OnPolicyBatch, Split, minibatches, power_of_two, shuffled
from rltrainer.algorithms.sequences import Sequences
from rltrainer.errors import ParamsError
from rltrainer.execution.execution import IndexedSteps
from rltrainer.functional.returns import gae
from rltrainer.nets.modes import EvalMode
from rltrainer.nets.policy import Policy
from rltrainer.types import DenseRollout, Rollout, UpdateResult
from rltrainer.updates.planned_step import add_norms

STEPS_PER_UPDATE_GRAPH = 128
"""Largest number of gradient steps in the CUDA graph of a whole update: a longer one takes memory and gains little."""
MINIBATCHES_PER_EXCHANGE = 32
"""Largest number of minibatches that are made before the first of them is used, if there are several ranks."""


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
    methods_of_update = ("process", "before_batches", "batches", "continues", "update")
    ends_groups = True
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

    def with_advantages(self, rollout: Rollout, value: Tensor, next_value: Tensor, lambda_: float) -> OnPolicyBatch:
        """Return a batch by generalised advantage estimation, given V(obs) and V(next_obs) [T, N]."""
        obs, reward = self.policy.normalize(rollout.obs), self.policy.scale_reward(rollout.reward)
        steps = reward, value, next_value, rollout.terminated, rollout.ends
        advantage, return_ = gae(*steps, self.params.gamma, lambda_)
        weight, log_prob = rollout.valid.to(value.dtype), torch.zeros_like(value)
        return OnPolicyBatch(obs, rollout.action, advantage, return_, value, log_prob, weight, rollout.extra)

    def columns_read(self, has_stale_data: bool = False) -> tuple[str, ...]:
        """Return the names of the columns that the updates read."""
        return self.columns + (self.columns_if_stale or () if has_stale_data else ())

    def before_batches(self, samples: OnPolicyBatch) -> Mapping[str, Tensor]:
        """Use the whole batch [T, N] once, without gradients and in eval mode, and return metrics."""
        return {}

    def check_batch_size(self, batch_size: int | None, num_rows: int | None, num_envs: int = 1) -> None:
        """Raise a `ParamsError` unless rollouts [num_rows, num_envs] can be split into such minibatches.

        A trainer asks before it trains; `num_rows` is None if rollouts vary in length. A minibatch for a policy with
        memory is whole envs, all of them if rollouts vary.
        """
        if self.policy.is_recurrent and num_rows != 1:  # else each minibatch has several steps of each env
            self._check_whole_envs(batch_size, num_rows)
            return
        steps = 3 if num_rows is None else num_rows * num_envs  # an odd number: pairs leave one
        if not self.standardizes() or steps == 0 or steps // math.ceil(steps / (batch_size or steps)) > 1:
            return
        field = f"{type(self.params).__name__}.{self.standardized_by}"
        of_what = "" if num_rows is None else f" of the rollout's {steps}"
        effect = f"as {field}=True makes its advantage 0: no actor is trained"
        rule = f"must leave no minibatch with one step{of_what}, {effect}"
        hint = f"Take larger minibatches, collect more, or set {field}=False."
        raise ParamsError.about(type(self).__name__, "batch_size", rule, batch_size, hint)

    def _check_whole_envs(self, batch_size: int | None, num_rows: int | None) -> None:
        name = type(self).__name__
        if batch_size is not None and num_rows is None:
            hint = "Collect env steps, not episodes, and with a Collector; or let batch_size=None take all envs."
            raise ParamsError(f"{name}: rollouts must be of one length for batch_size={batch_size}. {hint}")
        if batch_size is not None and num_rows is not None and batch_size % num_rows:
            rule = f"must be a multiple of {num_rows}, the steps of each env in a rollout, as a minibatch is whole envs"
            raise ParamsError.about(name, "batch_size", rule, batch_size, "None takes all envs.")

    def check_num_steps(self, num_steps: float) -> None:
        """Raise a `ParamsError` unless updates may apply so many gradients; see `check_batch_size`."""

    def standardizes(self) -> bool:
        """Return whether the advantages of each minibatch are standardised, which needs more than one step."""
        return self.standardized_by is not None and bool(getattr(self.params, self.standardized_by))

    def batches(self, samples: OnPolicyBatch, batch_size: int | None, repeat: int) -> Iterator[OnPolicyBatch]:
        """Return the batch of each gradient step from the result of `process`: minibatches of steps in random order.

        `Sequences` are split into whole envs. Each batch is asked for after the step before it; with CUDA graphs, up to
        32 are asked for at once.
        """
        if isinstance(samples, Sequences):
            return self.whole_envs(samples, batch_size, repeat)
        return minibatches(samples.flatten(), self._split_of(samples, batch_size), self.generator, repeat)

    def whole_envs(self, samples: Sequences, batch_size: int | None, repeat: int) -> Iterator[Sequences]:
        """Yield whole envs in random order; the last minibatch is padded by envs of weight 0."""
        num_rows, num_envs = samples.weight.shape
        self.check_batch_size(batch_size, num_rows, num_envs)
        size = num_envs if batch_size is None else min(batch_size // num_rows, num_envs)
        if size == num_envs:
            yield from itertools.repeat(samples.flatten(), repeat)
            return
        # An env without a valid step has no mean.
        counted = samples.weight.any(0).nonzero().squeeze(1)
        split = self._split(len(counted), size, num_envs)
        for index, is_real in shuffled(split, self.generator, repeat):
            for k, envs in enumerate(counted[index] if len(counted) else index):
                batch = samples.of_envs(envs)
                if is_real is not None:
                    batch.weight = batch.weight * is_real[k].repeat(num_rows)
                yield batch

    def _split_of(self, samples: OnPolicyBatch, batch_size: int | None) -> Split:
        # Where one graph holds the update, which cannot wait for the device, all steps are valid.
        all_count = self._execution.is_whole
        num_steps = samples.weight.numel() if all_count else int(samples.weight.count_nonzero())
        if self.standardizes():
            of_all = None if batch_size is None else batch_size * self.num_ranks
            self.check_batch_size(of_all, self._num_in_all(torch.tensor(num_steps)))
        size = num_rows = samples.weight.numel()  # no matter how many of them are valid
        if self.plan.varies_in_length:
            # Each size is a shape to compile: the next power of two.
            size = power_of_two(num_steps)
        return self._split(num_steps, size if batch_size is None else min(batch_size, size), num_rows)

    def _split(self, num_steps: int, size: int, num_rows: int) -> Split:
        """Split the valid steps of all rows into minibatches of at most this size.

        All ranks have equally many, which may be larger where other ranks have fewer valid steps.
        """
        of_all = torch.stack(self.plan.ranks.gather(torch.tensor([num_steps, size, num_rows]), is_equal=True))
        num_in_all, size_of_all, rows_of_all = of_all.sum(0).tolist()
        num_batches, most_batches = math.ceil(num_in_all / size_of_all), math.ceil(rows_of_all / size_of_all)
        needed = math.ceil(int(of_all[:, 0].max()) / max(num_batches, 1))
        return Split(num_steps, size if needed <= size else power_of_two(needed), num_batches, most_batches)

    def _num_in_all(self, num_steps: Tensor) -> int:
        """Return the number of valid steps in the data of all ranks, given this one's number []."""
        return int(self.plan.ranks.sum(num_steps.view(1)))

    def in_all(self, batch: OnPolicyBatch, of_all: Tensor) -> OnPolicyBatch:
        """Return a minibatch as a part of all ranks' minibatches, given the moments [3] of their advantages."""
        return batch

    def _parts_in_all(self, advantage: Tensor, weight: Tensor) -> Tensor:
        """Return [K, 4] of minibatches [K, B], or [4] of one: the share in means over ranks, and the moments of all."""
        of_all = self.plan.ranks.moments(advantage, weight)
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

    def step_as_written(self) -> Callable[..., UpdateResult]:
        """Return `gradient_step` itself if there is one rank."""
        return self.gradient_step if self.num_ranks == 1 else self._step

    def _step(self, batch: OnPolicyBatch, part: Tensor | None = None) -> UpdateResult:
        if part is None:
            return self.gradient_step(batch)
        if len(part) == 0:
            part = self._parts_in_all(batch.advantage.flatten(), batch.weight.flatten())
        share, of_all = part[0].to(batch.weight.dtype), part[1:]
        # A part that counts nothing must have means that are numbers, too.
        batch = dataclasses.replace(batch, weight=torch.where(share > 0, batch.weight, 1.0))
        self.reduce.share = share
        result = self.gradient_step(self.in_all(batch, of_all))
        self.reduce.share = None
        if isinstance(result, UpdateResult):  # else `_check_results` says so
            result.metrics = {name: value * share for name, value in result.metrics.items()}
        return result

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
        rollout = self._in_weight_dtype(rollout)
        update = self._update
        if self._fits_a_graph(rollout, batch_size, repeat) and self._execution.may_record():
            update = self._execution.recorded(update, (self.generator,))
        result = update(rollout.of_one_shape(), batch_size, repeat)
        self.observe(rollout)
        self._end_update()
        return result

    def _update(self, rollout: Rollout, batch_size: int | None, repeat: int) -> UpdateResult:
        """Process a rollout, take the gradient steps on its minibatches, and return their merged results."""
        samples, measured = self._processed(rollout)
        results = self._execution.run(self._steps(self.batches(samples, batch_size, repeat)))
        self._apply_rest(results)
        return self._merged(results, measured)

    @torch.no_grad()
    def _processed(self, rollout: Rollout) -> tuple[OnPolicyBatch, Mapping[str, Tensor]]:
        """Return the results of `process` and `before_batches`, compiled as steps are if rollouts have one shape."""
        with self._eval_mode.while_on():
            if isinstance(rollout, DenseRollout) and not self.waits_in_update:
                return self._execution.call("process", self._process, rollout)  # type: ignore[no-any-return]  # the same
            return self._process(rollout)

    def _process(self, rollout: Rollout) -> tuple[OnPolicyBatch, Mapping[str, Tensor]]:
        samples = self.process(rollout)
        return samples, self.before_batches(samples)

    def _steps(self, batches: Iterable[OnPolicyBatch]) -> Iterable[tuple[Any, ...]] | IndexedSteps:
        """Return the arguments of the gradient step of each batch."""
        if isinstance(batches, Minibatches) and len(batches) and self._execution.can_loop:
            num, (index, weight), parts = len(batches), batches.rows(), list[Tensor]()
            if self.num_ranks > 1:
                flat, place = batches.flat, index[:num]
                of_all = self._parts_in_all(flat.advantage[place], flat.weight[place] * weight[:num])
                parts = [pad(of_all, (0, 0, 0, len(index) - num))]
            one_by_one = zip(batches, *parts, strict=False)
            return IndexedSteps(num, Minibatches.at, (batches.flat, index, weight, *parts), one_by_one)
        steps: Iterator[tuple[Any, ...]] = self._with_parts(iter(batches)) if self.num_ranks > 1 else zip(batches)
        steps = itertools.takewhile(lambda _: self.continues(), steps)
        return steps if self.accumulation is None else self.accumulation.grouped(steps)

    def _apply_rest(self, results: list[UpdateResult]) -> None:
        """Apply the gathered gradients of the last steps: the next ones are on data of another policy."""
        if self.accumulation is None:
            return
        for optimizer in self._optimizers():
            optimizer.apply_rest()
        self.accumulation.num_steps = 0
        if results and self.plan.update.logs_norms:
            add_norms(results[-1], self.optimizers_by_loss())

    def _fits_a_graph(self, rollout: Rollout, batch_size: int | None, repeat: int) -> bool:
        """Return whether an update waits for no number of the device, and is short enough for one CUDA graph."""
        waits = self.waits_in_update or self.policy.is_recurrent  # its batches leave out envs without a valid step
        size = rollout.reward.numel()
        if waits or not isinstance(rollout, DenseRollout) or size == 0 or rollout.reward.device != self.device:
            return False
        return math.ceil(size / min(batch_size or size, size)) * repeat <= STEPS_PER_UPDATE_GRAPH

    def _merged(self, results: list[UpdateResult], measured: Mapping[str, Tensor]) -> UpdateResult:
        """Return the result of an update, given the results of its steps and of `before_batches`."""
        self._check_results(results)
        self._measure(results)
        result = self._average_metrics(UpdateResult.mean(results))
        return dataclasses.replace(result, metrics={**result.metrics, **measured}) if results and measured else result

    def _measure(self, results: list[UpdateResult]) -> None:
        """Replace the results of steps by some with further metrics."""
