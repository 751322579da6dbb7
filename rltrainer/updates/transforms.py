"""The transforms of a gradient, which return it, or None if no step is to be taken."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltrainer.functional.scalars import computed_once
from rltrainer.nets.target import Accumulation
from rltrainer.plan import PrecisionParams, UpdatePlan
from rltrainer.updates.gradient import Gradient
from rltrainer.updates.gradient_faults import BadGradients


class Scale:
    """Scale of a loss in float16; one for each optimizer, as the losses of an algorithm differ in size."""

    def __init__(self, precision: PrecisionParams, device: torch.device) -> None:
        self.precision = precision
        self.value = torch.full((), float(precision.initial_loss_scale), device=device)
        self.num_good = torch.zeros((), device=device)

    def __call__(self, gradient: Gradient) -> Gradient:
        """Divide the gradient of a scaled loss by the scale."""
        gradient.parts = torch._foreach_div(gradient.parts, self.value)
        return gradient

    def follow(self, is_finite: Tensor) -> None:
        """Lower the scale if a gradient was not finite, raise it after enough good steps; without a branch."""
        precision, one_more = self.precision, self.num_good + 1
        grows = is_finite & (one_more >= precision.loss_scale_growth_interval)
        raised = self.value * precision.loss_scale_growth
        raised = torch.where(grows & torch.isfinite(raised), raised, self.value)
        self.value.copy_(torch.where(is_finite, raised, self.value * precision.loss_scale_backoff))
        self.num_good.copy_(torch.where(is_finite & ~grows, one_more, 0.0))


class Accumulate:
    """Averages gradients over the steps of a group, of which only the last one passes."""

    def __init__(self, groups: Accumulation, like: Tensor) -> None:
        self.groups, self.sums = groups, like.new_zeros(len(like) + 1)  # of gradients [P], and of losses

    def __call__(self, gradient: Gradient) -> Gradient | None:
        """Add a gradient to its group, and return the average if the group is full."""
        self.sums += gradient.joined(gradient.loss)
        return self.average(gradient, self.groups.size) if self.groups.applies else None

    def average(self, gradient: Gradient, num_steps: int) -> Gradient:
        """Set a gradient to the average over its group, and start another group."""
        mean = self.sums / num_steps
        self.sums.zero_()
        gradient.parts, gradient.loss = gradient.split(mean[:-1]), mean[-1]
        return gradient


class Reduce:
    """Averages over ranks, of which each counts by its share of a batch; an algorithm's optimizers have one of them."""

    def __init__(self, plan: UpdatePlan = UpdatePlan(), is_compiled: bool = False) -> None:
        self.is_on, self.mean = plan.is_shared, plan.ranks.mean if plan.all_reduce is None else plan.mean
        if self.is_on and is_compiled and plan.leaves_graph:
            leave_graph: Any = torch.compiler.disable  # which takes seconds to import what it needs
            self.mean = leave_graph(plan.mean)
        self.share: Tensor | None = None  # this rank's batch over the whole batch, times the number of ranks; None is 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without the plan."""
        return type(self), ()

    def state_for_graphs(self) -> None:
        """Return nothing: a share is an argument of a graph."""

    def weighed(self, x: Tensor) -> Tensor:
        """Return numbers of this rank's batch as they count in a mean over ranks."""
        return x if self.share is None else x * self.share

    def weigh(self, gradient: Gradient) -> Gradient:
        """Let a gradient and its loss count by this rank's share."""
        if self.share is not None:
            gradient.loss = gradient.loss * self.share
            gradient.scale(self.share)
        return gradient

    def __call__(self, gradient: Gradient) -> Gradient:
        """Average a gradient and its loss over ranks, in one exchange."""
        both = self.mean(gradient.joined(gradient.loss))
        gradient.loss = both[-1]
        gradient.put(both[:-1])
        return gradient


class Check:
    """Lets a gradient pass that is finite, and notes one that is not."""

    def __init__(self, bad: BadGradients, scale: Scale | None, free_length: float) -> None:
        self.bad, self.scale, self.free_length = bad, scale, free_length  # the length up to which a limit does nothing

    def __call__(self, gradient: Gradient) -> Gradient | None:
        """Measure a gradient, and return it if it is finite; a vector passes, but applies only if it is finite."""
        if gradient.is_flat:
            gradient.vector = gradient.joined()
            gradient.norm = torch.linalg.vector_norm(gradient.vector)
            is_finite = computed_once(self._is_finite(gradient.norm, gradient.loss))
            self.bad.note(gradient.vector, gradient.loss, is_finite)
            gradient.applies = is_finite if gradient.applies is None else is_finite & gradient.applies
            return gradient
        if gradient.doubtful:
            gradient.leave_out_zeros()
        if not gradient.trained:
            return None
        length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradient.parts)))
        # One look is enough for most steps: a length within any limit is finite, and so are all numbers.
        if length <= self.free_length:
            return gradient
        gradient.norm = length
        is_finite = self._is_finite(length, gradient.loss)
        if is_finite:
            return gradient
        self.bad.note(gradient.joined(), gradient.loss, is_finite)
        return None

    def _is_finite(self, length: Tensor, loss: Tensor) -> Tensor:
        """Return whether a gradient is finite, by its length, and a scaled loss too; let the scale follow."""
        is_finite = length < math.inf  # no length is below 0, and of NaN it is False: a quarter of isfinite's time
        if self.scale is None:
            return is_finite
        is_finite &= torch.isfinite(loss)
        self.scale.follow(is_finite)
        return is_finite


@dataclass(frozen=True)
class Limit:
    """Limits the `norm_type`-norm of a gradient, or each number in it. None does not limit."""

    max_norm: float | None = None
    norm_type: float = 2.0
    max_value: float | None = None

    def __call__(self, gradient: Gradient) -> Gradient:
        """Bring a gradient within the limit."""
        if gradient.norm is None:
            return gradient
        if self.norm_type != 2:
            gradient.norm = self.norm(gradient.joined(), gradient.norm)
        if self.max_value is not None:
            gradient.put(gradient.joined().clamp(-self.max_value, self.max_value))
        elif self.max_norm is not None:
            gradient.scale((self.max_norm / (gradient.norm + 1e-6)).clamp_(max=1.0))
        return gradient

    def norm(self, vector: Tensor, length: Tensor) -> Tensor:
        """Return the norm of a vector [P], given its Euclidean length."""
        if self.norm_type == 2:
            return length
        largest: Tensor = torch.linalg.vector_norm(vector, math.inf)
        if self.norm_type == math.inf:
            return largest
        # In shares of the largest number: a high power of the numbers themselves would overflow, or underflow to 0.
        share = vector / torch.where(largest > 0, largest, 1.0)
        norm: Tensor = torch.linalg.vector_norm(share, self.norm_type)
        return largest * norm

    def balanced(self, vectors: Tensor) -> Tensor:
        """Return the sum [P] of gradients [K, P], each scaled to an equal share of the limit."""
        norms = torch.stack([self.norm(each, torch.linalg.vector_norm(each)) for each in vectors.unbind()])
        scale = (self.max_norm or 0.0) / len(vectors) / torch.where(norms == 0, 1.0, norms)
        # No matrix product: autocast would round it, and fp16 refuses to mix formats.
        return (scale.unsqueeze(-1) * vectors).sum(0)
