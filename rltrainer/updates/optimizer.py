"""The one place where gradients are taken, scaled, accumulated, reduced, checked, limited and applied."""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from rltrainer.errors import CheckpointError, ParamsError, readable
from rltrainer.functional.scalars import computed_once
from rltrainer.nets.target import Accumulation
from rltrainer.nets.weight_dtype import convert
from rltrainer.plan import PrecisionParams, UpdateCallbacks, UpdateParams, UpdatePlan
from rltrainer.schedules import Schedule, value_at
from rltrainer.state.codec import check_like, read
from rltrainer.types import State
from rltrainer.updates.adam import MISSED, Adam
from rltrainer.updates.gradient_faults import BadGradients, UnusedParameters
from rltrainer.updates.torch_optimizer import TorchOptimizer
from rltrainer.validation.field_rules import NonNegativeInt

Gradients = tuple[Tensor, ...]
Notify = Callable[[Tensor, Sequence[Tensor]], Tensor | None]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
AS_SAVED = "Build the networks as when it was saved"
LEAST = {"num_skipped": 0.0, "num_good": 0.0, "loss_scale": torch.finfo(torch.float32).tiny}
"""Scalars that are in a state if the plan of the run asked for them, with their smallest values."""


@dataclass(frozen=True)
class GradientLimit:
    """Limit of a flat gradient: of its `norm_type`-norm, or of each number in it. None does not limit."""

    max_norm: float | None = None
    norm_type: float = 2.0
    max_value: float | None = None

    def balanced(self, parts: Tensor) -> Tensor:
        """Return the sum [P] of gradients [K, P], each scaled to an equal share of the limit."""
        norms = torch.stack([self.norm(part, torch.linalg.vector_norm(part)) for part in parts.unbind()])
        scale = (self.max_norm or 0.0) / len(parts) / torch.where(norms == 0, 1.0, norms)
        # No matrix product: autocast would round it, and fp16 refuses to mix formats.
        return (scale.unsqueeze(-1) * parts).sum(0)

    def norm(self, gradient: Tensor, length: Tensor) -> Tensor:
        """Return the norm of a gradient [P], given its Euclidean length."""
        if self.norm_type == 2:
            return length
        largest: Tensor = torch.linalg.vector_norm(gradient, math.inf)
        if self.norm_type == math.inf:
            return largest
        # In shares of the largest number: a high power of the numbers themselves would overflow, or underflow to 0.
        share = gradient / torch.where(largest > 0, largest, 1.0)
        norm: Tensor = torch.linalg.vector_norm(share, self.norm_type)
        return largest * norm

    def clip(self, gradient: Tensor, norm: Tensor) -> Tensor:
        """Return a gradient [P] within the limit, given its norm."""
        if self.max_value is not None:
            return gradient.clamp(-self.max_value, self.max_value)
        if self.max_norm is None:
            return gradient
        return gradient * computed_once((self.max_norm / (norm + 1e-6)).clamp(max=1.0))


class LossScaler:
    """Scale of a loss in float16; one for each optimizer, as the losses of an algorithm differ in size."""

    def __init__(self, precision: PrecisionParams, device: torch.device) -> None:
        self.precision = precision
        self.scale = torch.full((), float(precision.initial_loss_scale), device=device)
        self.num_good = torch.zeros((), device=device)

    def update(self, is_finite: Tensor) -> None:
        """Lower the scale if a gradient was not finite, raise it after enough good steps; without a branch."""
        precision, one_more = self.precision, self.num_good + 1
        grows = is_finite & (one_more >= precision.loss_scale_growth_interval)
        raised = self.scale * precision.loss_scale_growth
        raised = torch.where(grows & torch.isfinite(raised), raised, self.scale)
        self.scale.copy_(torch.where(is_finite, raised, self.scale * precision.loss_scale_backoff))
        self.num_good.copy_(torch.where(is_finite & ~grows, one_more, 0.0))


class ScheduledValue:
    """A hyperparameter that may follow a schedule, as the scalar tensor `value`.

    A compiled gradient step reads it: a Python number would be compiled into the graph.
    """

    def __init__(self, schedule: float | Schedule, device: torch.device) -> None:
        self.schedule = schedule
        self.value: Tensor = torch.tensor(float(value_at(schedule, 0.0)), device=device)

    def set_weight_dtype(self, dtype: torch.dtype) -> None:
        """Hold the value in another format; the value of a schedule from the next update step on."""
        if self.value.dtype != dtype:
            value = self.value if callable(self.schedule) else self.schedule
            self.value = torch.as_tensor(value, dtype=dtype, device=self.value.device)

    def set_progress(self, progress: float) -> None:
        """Take the value that belongs to this progress."""
        if callable(self.schedule):
            self.value.fill_(value_at(self.schedule, progress))


class Optimizer:
    """Minimises a loss over some parameters.

    A parameter stays as it is while it requires no gradient or the loss does not depend on it. A step whose gradient is
    not finite is not applied; `take_fault` then names the first bad parameter.

    Args:
        modules: the modules to train, by name for error texts.
        lr: learning rate, or a schedule of it.
        max_grad_norm: global L2 norm that gradients are scaled down to; None does not clip. A plan may override it.
        adam_eps: epsilon of Adam.
        factory: from parameters to any `torch.optim` optimizer instead, whose learning rate `lr` overwrites.
    """

    def __init__(
        self,
        modules: dict[str, nn.Module],
        lr: float | Schedule,
        max_grad_norm: float | None = None,
        adam_eps: float = 1e-8,
        factory: OptimizerFactory | None = None,
    ) -> None:
        named = {f"{name}.{key}": p for name, module in modules.items() for key, p in module.named_parameters()}
        # A shared encoder appears under two names and is trained once.
        self._names = {parameter: name for name, parameter in reversed(named.items())}
        self.parameters = list(dict.fromkeys(named.values()))
        if not self.parameters:
            raise ParamsError(f"Optimizer.modules: must have parameters; got {', '.join(modules) or 'no module'}")
        self.unused = UnusedParameters(modules, self.parameters, self._names)
        self.schedule = lr
        self.method: Adam | TorchOptimizer = Adam(self.parameters, adam_eps)
        if factory is not None:
            self.method = TorchOptimizer(factory(self.parameters), self.parameters)
        device = self.parameters[0].device
        self._is_on_host = device.type == "cpu"
        self._bad = BadGradients([p.numel() for p in self.parameters], device)
        self.can_stop, self.is_stopped = False, torch.zeros((), dtype=torch.bool, device=device)
        self.name = "loss"
        self.grad_norm: Tensor | None = None  # before clipping, if the plan sets a limit; its reader resets it
        self._scaler = cast(LossScaler | None, None)
        self._update = UpdateParams()
        self.max_grad_norm = max_grad_norm
        self._all_reduce: Callable[[Tensor], Tensor] | None = None
        self.share: Tensor | None = None  # of this step's batch in means over ranks, times their number; None is 1
        self._accumulation: Accumulation | None = None
        self._gathered: Tensor | None = None
        self.set_progress(0.0)
        if self.parameters[0].dtype == torch.float64:
            self.set_weight_dtype(torch.float64)

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the plan."""
        own = {name: value for name, value in vars(self).items() if name != "step"}
        of_plan = dict.fromkeys(("_all_reduce", "_accumulation", "_gathered", "_scaler"))
        return own | of_plan | {"_update": UpdateParams()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the copy's state, and the algorithm's own limit."""
        vars(self).update(state)
        self.max_grad_norm = self._own_limit

    @property
    def max_grad_norm(self) -> float | None:
        """The algorithm's own limit of the norm, for plans that set none."""
        return self._own_limit

    @max_grad_norm.setter
    def max_grad_norm(self, value: float | None) -> None:
        self._own_limit, self._is_asked = value, self._update != UpdateParams() or self._scaler is not None
        update = self._update
        # A limit of each number takes the place of any limit of the norm.
        norm = None if update.max_grad_value is not None else update.max_grad_norm or value
        self.limit = GradientLimit(norm, update.grad_norm_type, update.max_grad_value)
        # A gradient that is no longer than this is applied as it is: the largest of the lengths that are finite.
        largest = torch.finfo(self._bad.gradient.dtype).max
        self._free_length = -1.0 if self._is_asked else largest if norm is None else norm - 1e-6

    def set_weight_dtype(self, dtype: torch.dtype) -> None:
        """Bring moments and stored gradients to the parameters' format, in place."""
        self.method.set_weight_dtype(dtype)
        for tensor in (self._bad.gradient, *([] if self._gathered is None else [self._gathered])):
            convert(tensor, dtype)
        self.max_grad_norm = self.max_grad_norm  # its setter knows the largest number of the format

    def check_plan(self, plan: UpdatePlan) -> None:
        """Raise a `ParamsError` if a plan shares out a limit that is not set."""
        if plan.update.balance_grad_norms and plan.update.max_grad_norm is None and self.max_grad_norm is None:
            rule = "must be False without a limit of the norm, which it shares out"
            plan.update.raise_invalid("balance_grad_norms", rule, "Set max_grad_norm.")

    def gather_over(self, accumulation: Accumulation | None) -> None:
        """Average gradients over groups of steps from now on; None applies each step's."""
        if accumulation is not self._accumulation:
            self._accumulation = accumulation
            self._gathered = None if accumulation is None else self._nothing_gathered()

    def attach(self, name: str, plan: UpdatePlan, is_compiled: bool) -> None:
        """Apply a plan from the next step on; a compiled `step` leaves its graph for callbacks of its named loss."""
        self.name, precision, is_scaled = name, plan.precision, plan.precision.amp == "fp16"
        if (self._scaler.precision if self._scaler else None) != (precision if is_scaled else None):
            self._scaler = LossScaler(precision, self._bad.loss.device) if is_scaled else None
        self._bad.follow(plan.skips_steps)
        self._update, self.max_grad_norm = plan.update, self.max_grad_norm
        average = plan.ranks.mean if plan.all_reduce is None else plan.average
        self._all_reduce, self.share = average if plan.is_shared else None, None  # a failed step leaves a share
        notify: Any = partial(self._notify, plan.callbacks)
        if is_compiled and plan.leaves_graph:
            leave_graph: Any = torch.compiler.disable  # which takes seconds to import what it needs
            self._all_reduce, notify = self._all_reduce and leave_graph(self._all_reduce), leave_graph(notify)
        vars(self).pop("step", None)
        if plan.callbacks.on_loss is not None:
            # Another `step` in the instance: without callbacks, no step asks whether there is one.
            vars(self)["step"] = partial(self._step_with_callback, notify)

    def set_progress(self, progress: float) -> None:
        """Begin an update step: take the learning rate of this progress for all of it."""
        self.method.lr = value_at(self.schedule, progress)
        if self.can_stop:
            self.is_stopped.zero_()

    def average(self, x: Tensor) -> Tensor:
        """Return the average over ranks of a number without gradient that a loss is made of, such as a scale."""
        return x if self._all_reduce is None else self._all_reduce(x)

    def stop_above(self, limit: float, value: Tensor) -> None:
        """Stop the steps of this update, if it `can_stop` and a scalar, averaged over ranks, is above a limit."""
        if self._all_reduce is not None:
            value = self._all_reduce(self._weighed(value))
        self.is_stopped.logical_or_(value > limit)

    def step(self, loss: Tensor, parts: Sequence[Tensor] = ()) -> None:
        """Minimise a scalar loss by one step: scale, accumulate, reduce, check, limit and apply its gradient.

        `parts` are the terms whose sum the loss is, for a plan that balances them.
        """
        trained: list[Tensor] = [p for p in self.parameters if p.requires_grad]
        if not trained:
            return
        scale = None if self._scaler is None else self._scaler.scale
        is_balanced = len(parts) > 1 and self._update.balance_grad_norms
        found: Sequence[Tensor | None]
        if is_balanced:
            found, self.grad_norm, loss = self._balanced(trained, parts, loss, 1.0 if scale is None else scale)
        else:
            found = torch.autograd.grad(loss if scale is None else loss * scale, trained, allow_unused=True)
        trained, gradients, doubtful = self._used(trained, found)
        if scale is not None and not is_balanced:
            gradients = tuple(torch._foreach_div(gradients, scale))
        loss = loss.detach()
        with torch.no_grad():
            if self._gathered is not None and self._accumulation is not None:
                sample = self._flat(trained, gradients, loss)
                self._gathered += sample if is_balanced else self._weighed(sample)
                if not self._accumulation.applies:
                    return
                trained, gradients, loss = self._take_gathered(self._gathered, self._accumulation.size)
            self._apply(trained, gradients, loss, doubtful, is_reduced=is_balanced)

    @torch.no_grad()
    def apply_rest(self) -> None:
        """Apply the gathered gradient of a group that will not be full."""
        if self._gathered is not None and self._accumulation is not None and not self._accumulation.begins:
            self._apply(*self._take_gathered(self._gathered, self._accumulation.num_steps), self.unused.last)

    @property
    def num_skipped(self) -> int:
        """Number of steps that were left out because the plan says "skip"; waits for the device."""
        return int(self._bad.num) if self._bad.are_skipped else 0

    @property
    def num_left_out(self) -> int:
        """Number of skipped steps, plus 1 if this update step has ended early; waits for the device."""
        return self.num_skipped + (self.can_stop and bool(self.is_stopped))

    @property
    def loss_scale(self) -> float | None:
        """Factor of the loss in float16, None otherwise; waits for the device."""
        return None if self._scaler is None else float(self._scaler.scale)

    @property
    def is_scale_too_low(self) -> bool:
        """True if the scale of the loss has fallen below its minimum; waits for the device."""
        return self._scaler is not None and float(self._scaler.scale) < self._scaler.precision.min_loss_scale

    def skip(self) -> None:
        """Count a step that the caller left out."""
        self._bad.num += 1

    def state_for_graphs(self) -> Hashable:
        """Return what a recorded step depends on besides tensors; the learning rate is one."""
        return *astuple(self.limit), isinstance(self.method, Adam) and self.method.counts_differ

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that `step` changes; of an optimizer of the user's the parameters only."""
        of_method = self.method.tensors if isinstance(self.method, Adam) else []
        gathered = [] if self._gathered is None else [self._gathered]
        of_scaler = [] if self._scaler is None else [self._scaler.scale, self._scaler.num_good]
        return [*self.parameters, *of_method, *self._bad.tensors, self.is_stopped, *gathered, *of_scaler]

    @property
    def shared_tensors(self) -> list[Tensor]:
        """Those that are equal in all ranks, and the state of an optimizer of the user's; not the sums of a group."""
        states = self.method.optimizer.state if isinstance(self.method, TorchOptimizer) else {}
        moments = [x for p in self.parameters for x in states.get(p, {}).values() if isinstance(x, Tensor)]
        return [x for x in self.tensors if x is not self._gathered] + moments

    def take_fault(self, wait: bool = True) -> str | None:
        """Describe the last gradient that was not finite, once; without `wait`, perhaps at a later call."""
        if (fault := self._bad.take(wait)) is None:
            return None
        number, loss = fault
        name = "all parameters together" if number is None else self._names[self.parameters[number]]
        return f"the gradient of {name} is not finite (loss = {loss:g})"

    def state_dict(self) -> State:
        """Return the state of the update rule, the names of its parameters, and what the plan counts."""
        frozen = [not parameter.requires_grad for parameter in self.parameters]
        state = self.method.state_dict() | {"parameters": list(map(self._names.get, self.parameters)), "frozen": frozen}
        if self._bad.are_skipped:
            state["num_skipped"] = self._bad.num
        if self._scaler is not None:
            state |= {"loss_scale": self._scaler.scale, "num_good": self._scaler.num_good}
        if self._accumulation is not None and not self._accumulation.begins:
            state |= {"gathered": self._gathered, "num_gathered": self._accumulation.num_steps}
        return state

    def check_state_dict(self, name: str, state: State) -> None:
        """Raise a `CheckpointError` that begins with `name` unless this is a state of this optimizer, of any plan."""
        own = self.state_dict()
        if state.get("rule") != own["rule"]:
            rules = f"expected {own['rule']!r}, found {readable(state.get('rule'))}"
            raise CheckpointError(f"{name}: {rules}. Make the algorithm with the same optimizer.")
        for key, kind, of_what in (
            ("parameters", list[str], "the names of what is trained"),
            ("frozen", list[bool], "which of them are frozen"),
        ):
            if read(kind, state.get(key), f"{name}.{key}") != own[key]:
                hint = f"{AS_SAVED}; freeze layers after loading."
                raise CheckpointError(f"{name}.{key}: {of_what} differs from when it was saved. {hint}")
        self.method.check_state_dict(name, state)
        for key, least in (LEAST | {"gathered": None}).items():
            if key in state:
                own_tensor = self._nothing_gathered() if key == "gathered" else self._bad.num
                check_like(f"{name}.{key}", own_tensor, state[key], f"{AS_SAVED}.", least)
        num_gathered = read(NonNegativeInt, state.get("num_gathered", 0), f"{name}.num_gathered")
        if (num_gathered > 0) != ("gathered" in state):
            raise CheckpointError(f"{name}.num_gathered: expected how many are gathered, found {num_gathered}")
        if unknown := sorted(state.keys() - own.keys() - {*LEAST, MISSED, "gathered", "num_gathered"}):
            raise CheckpointError(f"{name}: the state has {unknown[0]!r}, which this optimizer has not")

    def load_state_dict(self, state: State) -> None:
        """Restore a checked state; earlier faults are forgotten."""
        self.take_fault()
        self.method.load_state_dict(state)
        if self._bad.are_skipped:
            self._bad.num.copy_(state.get("num_skipped", torch.zeros(())))
        if self._scaler is not None:
            fresh = LossScaler(self._scaler.precision, self._bad.loss.device)
            self._scaler.scale.copy_(state.get("loss_scale", fresh.scale))
            self._scaler.num_good.copy_(state.get("num_good", fresh.num_good))
        if self._gathered is not None and self._accumulation is not None:
            # A file of larger groups, or of none, begins a new one.
            num_steps = state.get("num_gathered", 0)
            self._accumulation.num_steps = num_steps if num_steps < self._accumulation.size else 0
            self._gathered.copy_(self._nothing_gathered() if self._accumulation.begins else state["gathered"])

    def _step_with_callback(self, notify: Notify, loss: Tensor, parts: Sequence[Tensor] = ()) -> None:
        if (found := notify(loss, parts)) is not None:
            Optimizer.step(self, found, parts if found is loss else ())

    def _notify(self, callbacks: UpdateCallbacks, loss: Tensor, parts: Sequence[Tensor]) -> Tensor | None:
        """Pass a loss to a callback, unless its step will be left out; see `UpdateCallbacks.notify`."""
        if (self.can_stop and self.is_stopped) or (self._bad.are_skipped and not torch.isfinite(loss)):
            return loss
        step = partial(Optimizer.step, self)
        return callbacks.notify(self.name, loss, lambda found: step(found, parts if found is loss else ()))

    def _can_walk_memory(self) -> bool:
        """Return whether all parameters lie in memory as their moments do, where `Adam.step` can reach them."""
        return self._is_on_host and all(map(Tensor.is_contiguous, self.parameters))

    def _balanced(
        self, trained: Sequence[Tensor], losses: Sequence[Tensor], loss: Tensor, scale: Tensor | float
    ) -> tuple[list[Tensor | None], Tensor, Tensor]:
        """Return gradients to which each part of a loss contributes the same norm, the norm of their sum, and the loss.

        A gradient is None if no part depends on its parameter. All are averaged over ranks.
        """
        each = [torch.autograd.grad(x * scale, trained, retain_graph=True, allow_unused=True) for x in losses]
        with torch.no_grad():
            vectors = torch.stack([self._flat(trained, filled(trained, found)) for found in each]) / scale
            if self._all_reduce is not None:
                averages = self._all_reduce(self._weighed(torch.cat([vectors.flatten(), loss.view(1)])))
                vectors, loss = averages[:-1].view_as(vectors), averages[-1]
            plain = vectors.sum(0)
            norm = self.limit.norm(plain, torch.linalg.vector_norm(plain))
            gradients = self._parts(self.limit.balanced(vectors), trained)
        are_unused = [all([gradient is None for gradient in found]) for found in zip(*each, strict=True)]
        return [None if unused else x for x, unused in zip(gradients, are_unused, strict=True)], norm, loss

    def _used(
        self, trained: list[Tensor], found: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], Gradients, Sequence[Tensor]]:
        """Return what to train, its gradients, and what of it may have gradients in other steps or ranks only."""
        gradients = tuple([gradient for gradient in found if gradient is not None])
        if len(gradients) == len(found):
            return trained, gradients, ()
        unused = [p for p, gradient in zip(trained, found, strict=True) if gradient is None]
        self.unused.note(unused)
        if self._gathered is not None or self._all_reduce is not None:
            return trained, filled(trained, found), unused
        return [p for p, gradient in zip(trained, found, strict=True) if gradient is not None], gradients, ()

    def _nothing_gathered(self) -> Tensor:
        """Return the zeros that a group begins with: for the gradients of all parameters, and the loss."""
        return self._bad.gradient.new_zeros(len(self._bad.gradient) + 1)

    def _take_gathered(self, gathered: Tensor, num_steps: int) -> tuple[list[Tensor], Gradients, Tensor]:
        """Return what to train and the means of its gathered gradients and of the loss; begin a new group."""
        mean = gathered / num_steps
        gathered.zero_()
        trained: list[Tensor] = [p for p in self.parameters if p.requires_grad]
        return trained, self._parts(mean[:-1], trained), mean[-1]

    def _weighed(self, x: Tensor) -> Tensor:
        """Return numbers of this rank's batch as they count in averages over ranks."""
        return x if self.share is None else x * self.share

    def _reduced(self, trained: Sequence[Tensor], gradients: Gradients, loss: Tensor) -> tuple[Tensor, Tensor]:
        """Return the flat gradient and its loss, averaged over ranks in one exchange."""
        if self._all_reduce is None:
            return self._flat(trained, gradients), loss
        both = self._flat(trained, gradients, loss)
        both = self._all_reduce(both if self._gathered is not None else self._weighed(both))
        return both[:-1], both[-1]

    def _apply(
        self,
        trained: Sequence[Tensor],
        gradients: Gradients,
        loss: Tensor,
        doubtful: Sequence[Tensor] = (),
        is_reduced: bool = False,
    ) -> None:
        """Reduce, check, limit and apply gradients; leave a doubtful parameter alone where its gradient is 0."""
        if isinstance(self.method, Adam) and (torch.compiler.is_compiling() or not self._can_walk_memory()):
            self._apply_flat(self.method, trained, gradients, loss, doubtful, is_reduced)
            return
        # On the host, looking at the gradients and deciding is quickest: there is no device to wait for.
        if self.can_stop and self.is_stopped:
            return
        if self._all_reduce is not None and not is_reduced:
            gradient, loss = self._reduced(trained, gradients, loss)
            gradients = self._parts(gradient, trained)
        if doubtful:
            are_doubtful = dict.fromkeys(doubtful)
            pairs = zip(trained, gradients, strict=True)
            kept = [(p, x) for p, x in pairs if p not in are_doubtful or x.any()]
            trained, gradients = [p for p, _ in kept], tuple(x for _, x in kept)
        if not trained:
            return
        length = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        # One look is enough for most steps: a length within any limit is finite, and so are all gradients.
        if not length <= self._free_length:
            is_finite = self._check(length, loss)
            if not is_finite:
                self._bad.note(self._flat(trained, gradients), loss, is_finite)
                return
            if self._is_asked:
                gradients = self._parts(self._limit(self._flat(trained, gradients), length), trained)
            else:
                # Not in place: two parameters may share one gradient, which may even be the user's own data.
                gradients = torch._foreach_mul(gradients, (self.max_grad_norm / (length + 1e-6)).clamp_(max=1.0))
        self.method.step(trained, gradients)

    def _apply_flat(
        self,
        rule: Adam,
        trained: Sequence[Tensor],
        gradients: Gradients,
        loss: Tensor,
        doubtful: Sequence[Tensor] = (),
        is_reduced: bool = False,
    ) -> None:
        """Do the same without a branch, for graphs and for devices, where looking at a value would wait for it."""
        gradient, loss = (
            (self._flat(trained, gradients), loss) if is_reduced else self._reduced(trained, gradients, loss)
        )
        length = torch.linalg.vector_norm(gradient)
        is_finite = computed_once(self._check(length, loss))
        self._bad.note(gradient, loss, is_finite)
        gradient = self._limit(gradient, length)
        applies = is_finite & ~self.is_stopped if self.can_stop else is_finite
        rule.step_flat(trained, gradient, applies, doubtful)

    def _check(self, length: Tensor, loss: Tensor) -> Tensor:
        """Return whether a gradient is finite, by its length, and a scaled loss too; let the scale follow."""
        is_finite = length < math.inf  # no length is below 0, and of NaN it is False: a quarter of isfinite's time
        if self._scaler is None:
            return is_finite
        is_finite &= torch.isfinite(loss)
        self._scaler.update(is_finite)
        return is_finite

    def _limit(self, gradient: Tensor, length: Tensor) -> Tensor:
        """Return a flat gradient within the limit, given its length; keep its norm for the metrics."""
        norm = self.limit.norm(gradient, length)
        if self._update.logs_norms and self.grad_norm is None:  # else it was kept before it was balanced
            self.grad_norm = norm
        return self.limit.clip(gradient, norm)

    def _flat(self, trained: Sequence[Tensor], gradients: Gradients, *more: Tensor) -> Tensor:
        """Return the gradients of all parameters, zeros for those that are not trained, and more as one vector."""
        if len(trained) < len(self.parameters):
            found = dict(zip(trained, gradients, strict=True))
            gradients = tuple(found[p] if p in found else torch.zeros_like(p) for p in self.parameters)
        return torch.cat([x.flatten() for x in (*gradients, *more)])

    def _parts(self, vector: Tensor, trained: Sequence[Tensor]) -> Gradients:
        """Return the gradients of the parameters that are trained, as views of a vector of all."""
        parts = zip(self.parameters, torch.split(vector, [p.numel() for p in self.parameters]), strict=True)
        if len(trained) == len(self.parameters):
            return tuple(part.view_as(p) for p, part in parts)
        found = dict.fromkeys(trained)
        return tuple(part.view_as(p) for p, part in parts if p in found)


def filled(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Gradients:
    """Return gradients with zeros where there is none."""
    pairs = zip(parameters, gradients, strict=True)
    return tuple(torch.zeros_like(p) if gradient is None else gradient for p, gradient in pairs)
