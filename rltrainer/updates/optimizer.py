"""The one place where gradients are taken, scaled, accumulated, reduced, checked, limited and applied."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
from rltrainer.state.typed_state import check_like
from rltrainer.types import State
from rltrainer.updates.adam import MISSED, Adam
from rltrainer.updates.bad_gradients import BadGradients
from rltrainer.updates.torch_optimizer import TorchOptimizer
from rltrainer.updates.unused_parameters import UnusedParameters
from rltrainer.validation.field_rules import is_int


@dataclass(frozen=True)
class GradientLimit:
    """A limit of a flat gradient: of its norm, or of each number in it.

    Args:
        max_norm: gradients of a larger norm are scaled down to it; None does not.
        norm_type: the p of the norm.
        max_value: numbers are clipped to [-max_value, max_value]; None does not.
    """

    max_norm: float | None = None
    norm_type: float = 2.0
    max_value: float | None = None

    @classmethod
    def of(cls, update: UpdateParams, own: float | None) -> "GradientLimit":
        """Return the limit that a plan's params set; where they set none, the algorithm's own limit of the norm."""
        if update.max_grad_value is not None:
            return cls(None, update.grad_norm_type, update.max_grad_value)
        return cls(own if update.max_grad_norm is None else update.max_grad_norm, update.grad_norm_type)

    def balanced(self, parts: Tensor) -> Tensor:
        """Return the sum [P] of gradients [K, P] that all have the same norm, an equal share of the limit."""
        norms = torch.stack([self.norm(part, torch.linalg.vector_norm(part)) for part in parts.unbind()])
        scale = (self.max_norm or 0.0) / len(parts) / torch.where(norms == 0, 1.0, norms)
        # No matrix product: autocast would round it, and fp16 refuses to mix formats.
        return (scale.unsqueeze(-1) * parts).sum(0)

    def norm(self, gradient: Tensor, length: Tensor) -> Tensor:
        """Return the norm of a gradient [P], given its length, the norm of type 2."""
        if self.norm_type == 2:
            return length
        largest: Tensor = torch.linalg.vector_norm(gradient, math.inf)
        if self.norm_type == math.inf:
            return largest
        # In shares of the largest number: a high power of the numbers themselves would be infinite, or 0.
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


Gradients = tuple[Tensor, ...]


def as_vector(parameters: Sequence[Tensor], trained: Sequence[Tensor], gradients: Gradients) -> Tensor:
    """Return the gradients of all parameters as one vector, with zeros for those that are left alone."""
    if len(trained) < len(parameters):
        found = dict(zip(trained, gradients, strict=True))
        gradients = tuple(found[p] if p in found else torch.zeros_like(p) for p in parameters)
    return torch.cat([gradient.flatten() for gradient in gradients])


def in_parts(parameters: Sequence[Tensor], vector: Tensor, trained: Sequence[Tensor]) -> Gradients:
    """Return the gradients of the parameters that are trained, as views of a vector of all."""
    parts = zip(parameters, torch.split(vector, [p.numel() for p in parameters]), strict=True)
    if len(trained) == len(parameters):
        return tuple(part.view_as(p) for p, part in parts)
    found = dict.fromkeys(trained)
    return tuple(part.view_as(p) for p, part in parts if p in found)


def filled(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Gradients:
    """Return gradients with zeros where there is none."""
    pairs = zip(parameters, gradients, strict=True)
    return tuple(torch.zeros_like(p) if gradient is None else gradient for p, gradient in pairs)


def without_zeros(
    trained: Sequence[Tensor], gradients: Gradients, doubtful: Sequence[Tensor]
) -> tuple[list[Tensor], Gradients]:
    """Return the parameters to train and their gradients, without those of the doubtful whose gradient is 0."""
    is_doubtful = dict.fromkeys(doubtful)
    kept = [(p, x) for p, x in zip(trained, gradients, strict=True) if p not in is_doubtful or x.any()]
    return [p for p, _ in kept], tuple(x for _, x in kept)


def balanced(
    parameters: Sequence[Tensor], trained: Sequence[Tensor], losses: Sequence[Tensor], scale: Tensor | float,
    limit: GradientLimit,
) -> tuple[list[Tensor | None], Tensor]:  # fmt: skip
    """Return gradients to which each part of a loss contributes alike, and the norm of the plain ones.

    Args:
        parameters, trained: all parameters, and those that are trained.
        losses: the parts.
        scale: what each is multiplied with while its gradient is taken.
        limit: how long the gradient may be, of which each part gets a share.

    Returns:
        gradients of those that are trained, None where no part depends on one; and the norm.
    """
    each = [torch.autograd.grad(x * scale, trained, retain_graph=True, allow_unused=True) for x in losses]
    with torch.no_grad():
        vectors = torch.stack([as_vector(parameters, trained, filled(trained, found)) for found in each]) / scale
        plain = vectors.sum(0)
        norm = limit.norm(plain, torch.linalg.vector_norm(plain))
        gradients = in_parts(parameters, limit.balanced(vectors), trained)
    are_unused = [all([gradient is None for gradient in found]) for found in zip(*each, strict=True)]
    return [None if unused else x for x, unused in zip(gradients, are_unused, strict=True)], norm


Notify = Callable[[Tensor, Sequence[Tensor]], Tensor | None]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Optimizer:
    """Minimises a loss over some parameters.

    A parameter is left alone for as long as it does not require a gradient, or the loss does not depend on it. A step
    whose gradients are not finite is not applied; `take_fault` then names the first bad parameter.

    Args:
        modules: the modules to train, by name; the names appear in error texts only.
        lr: learning rate, or a schedule of it.
        max_grad_norm: gradients are scaled down to this global L2 norm; None does not clip. A plan may say otherwise.
        adam_eps: epsilon of Adam.
        factory: from parameters to any `torch.optim` optimizer instead, whose learning rate `lr` overwrites.

    Attributes:
        grad_norm: of the last gradient, before it was clipped; only where the plan sets a limit. Who reads it sets it
            to None.

    Raises:
        ParamsError: the modules have no parameters, or the factory returns no optimizer.
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
        self.grad_norm: Tensor | None = None
        self._scaler = cast(LossScaler | None, None)
        self._update = UpdateParams()
        self.max_grad_norm = max_grad_norm
        self._all_reduce: Callable[[Tensor], Tensor] | None = None
        self._accumulation: Accumulation | None = None
        self._gathered: Tensor | None = None
        self.set_progress(0.0)
        if self.parameters[0].dtype == torch.float64:
            self.set_weight_dtype(torch.float64)

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the plan: the copy is another algorithm's."""
        own = {name: value for name, value in vars(self).items() if name != "step"}
        return own | {
            "_all_reduce": None, "_update": UpdateParams(), "_accumulation": None, "_gathered": None,
            "_scaler": None
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the copy's state, and the algorithm's own limit."""
        vars(self).update(state)
        self.max_grad_norm = self._own_limit

    @property
    def max_grad_norm(self) -> float | None:
        """The algorithm's own limit of the norm, which holds where the plan sets none."""
        return self._own_limit

    @max_grad_norm.setter
    def max_grad_norm(self, value: float | None) -> None:
        self._own_limit, self._is_asked = value, self._update != UpdateParams() or self._scaler is not None
        self.limit = GradientLimit.of(self._update, value)
        # A gradient that is no longer than this is taken as it is.
        largest = torch.finfo(self._bad.gradient.dtype).max  # of the norms that are finite
        self._free_length = largest if self.limit.max_norm is None else self.limit.max_norm - 1e-6
        self._free_length = -1.0 if self._is_asked else self._free_length

    def set_weight_dtype(self, dtype: torch.dtype) -> None:
        """Bring all that is kept of gradients to the parameters' format, in place."""
        self.method.set_weight_dtype(dtype)
        for tensor in (self._bad.gradient, *([] if self._gathered is None else [self._gathered])):
            convert(tensor, dtype)
        self.max_grad_norm = self.max_grad_norm  # which knows the largest number of the format

    def check_plan(self, plan: UpdatePlan) -> None:
        """Check that a plan can be followed.

        Raises:
            ParamsError: it shares out a limit that there is not.
        """
        if plan.update.balance_grad_norms and plan.update.max_grad_norm is None and self.max_grad_norm is None:
            rule = "must be False without a limit of the norm, which it shares out"
            plan.update.raise_invalid("balance_grad_norms", rule, "Set max_grad_norm.")

    def gather_over(self, accumulation: Accumulation | None) -> None:
        """Average gradients over groups of steps from now on; None applies those of each step."""
        if accumulation is not self._accumulation:
            self._accumulation = accumulation
            self._gathered = None if accumulation is None else self._nothing_gathered()

    def attach(self, name: str, plan: UpdatePlan, is_compiled: bool) -> None:
        """Follow a plan from the next step on.

        Args:
            name: of the loss: "critic", "actor", ...
            plan: the algorithm's.
            is_compiled: whether `step` is traced, and has to leave its graph for callbacks.
        """
        self.name, precision, is_scaled = name, plan.precision, plan.precision.amp == "fp16"
        if (self._scaler.precision if self._scaler else None) != (precision if is_scaled else None):
            self._scaler = LossScaler(precision, self._bad.loss.device) if is_scaled else None
        self._bad.follow(plan.skips_steps)
        self._update, self.max_grad_norm = plan.update, self.max_grad_norm
        self._all_reduce = None if plan.all_reduce is None else plan.average
        notify: Any = partial(self._notify, plan.callbacks)
        if is_compiled and (plan.all_reduce is not None or plan.callbacks.on_loss is not None):
            leave_graph: Any = torch.compiler.disable  # which takes seconds to import what it needs
            self._all_reduce, notify = self._all_reduce and leave_graph(self._all_reduce), leave_graph(notify)
        vars(self).pop("step", None)
        if plan.callbacks.on_loss is not None:
            vars(self)["step"] = partial(self._step_with_callback, notify)  # so that the method need not ask for one

    def set_progress(self, progress: float) -> None:
        """Begin an update step: apply the learning rate that belongs to this progress, which holds for all of it."""
        self.method.lr = value_at(self.schedule, progress)
        if self.can_stop:
            self.is_stopped.zero_()

    def stop_above(self, limit: float, value: Tensor) -> None:
        """Apply no more gradients in this update step if a scalar, its mean over all processes, is above a limit.

        Only an optimizer that `can_stop` looks at it.
        """
        if self._all_reduce is not None:
            value = self._all_reduce(value)
        self.is_stopped.logical_or_(value > limit)

    def step(self, loss: Tensor, parts: Sequence[Tensor] = ()) -> None:
        """Minimise a scalar loss by one step: scale, accumulate, reduce, check, limit and apply its gradient.

        Scaling, accumulation, reduction and other limits than the algorithm's own are there if the plan asks for them.

        Args:
            loss: the loss.
            parts: of which it is the sum, for a plan that balances them.
        """
        trained: list[Tensor] = [p for p in self.parameters if p.requires_grad]
        if not trained:
            return
        scale = None if self._scaler is None else self._scaler.scale
        is_balanced = len(parts) > 1 and self._update.balance_grad_norms
        found: Sequence[Tensor | None]
        if is_balanced:
            found, self.grad_norm = balanced(
                self.parameters, trained, parts, 1.0 if scale is None else scale, self.limit
            )
        else:
            found = torch.autograd.grad(loss if scale is None else loss * scale, trained, allow_unused=True)
        trained, gradients, doubtful = self._used(trained, found)
        if scale is not None and not is_balanced:
            gradients = tuple(torch._foreach_div(gradients, scale))
        loss = loss.detach()
        with torch.no_grad():
            if self._gathered is not None and self._accumulation is not None:
                self._gathered += torch.cat([self._flat(trained, gradients), loss.view(1)])
                if not self._accumulation.applies:
                    return
                trained, gradients, loss = self._take_gathered(self._gathered, self._accumulation.size)
            self._apply(trained, gradients, loss, doubtful)

    @torch.no_grad()
    def apply_rest(self) -> None:
        """Apply what a group has gathered that will not be full."""
        if self._gathered is not None and self._accumulation is not None and not self._accumulation.begins:
            self._apply(*self._take_gathered(self._gathered, self._accumulation.num_steps), self.unused.last)

    @property
    def num_skipped(self) -> int:
        """The steps that were left out where the plan says "skip"; waits for the device."""
        return self._bad.num_skipped

    @property
    def num_left_out(self) -> int:
        """The steps that were skipped, and whether this update step has ended early; waits for the device."""
        return self.num_skipped + (self.can_stop and bool(self.is_stopped))

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in float16, None otherwise; waits for the device."""
        return None if self._scaler is None else float(self._scaler.scale)

    @property
    def is_scale_too_low(self) -> bool:
        """Return whether the scale of the loss has fallen below its minimum; waits for the device."""
        return self._scaler is not None and self._scaler.is_too_low()

    def skip(self) -> None:
        """Count a step that somebody else left out."""
        self._bad.num += 1

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that `step` changes; of an optimizer of the user's the parameters only."""
        of_method = self.method.tensors if isinstance(self.method, Adam) else []
        gathered = [] if self._gathered is None else [self._gathered]
        of_scaler = [] if self._scaler is None else self._scaler.tensors
        return [*self.parameters, *of_method, *self._bad.tensors, self.is_stopped, *gathered, *of_scaler]

    def take_fault(self, wait: bool = True) -> str | None:
        """Say what was wrong with the last gradient that was not finite, if there was one since the last call.

        Args:
            wait: wait for the device; if not, a fault may be told at a later call. The CPU is never waited for.
        """
        if (fault := self._bad.take(wait)) is None:
            return None
        number, loss = fault
        name = "all parameters together" if number is None else self._names[self.parameters[number]]
        return f"the gradient of {name} is not finite (loss = {loss:g})"

    def state_dict(self) -> State:
        """Return what the update rule remembers, and of which parameters."""
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
        """Check a whole state before it is loaded.

        Raises:
            CheckpointError: it is another optimizer's, or of other parameters; the text begins with `name`.
        """
        current = self.state_dict()
        check_kind(name, state, current)
        self.method.check_state_dict(name, state)
        check_of_plan(name, state, self._bad.num, self._nothing_gathered())
        unknown = sorted(state.keys() - current.keys() - {*COUNTS, MISSED, "gathered", "num_gathered"})
        if unknown:
            raise CheckpointError(f"{name}: the state has {unknown[0]!r}, which this optimizer has not")

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned and `check_state_dict` has checked; earlier faults are forgotten."""
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
        """Notify a callback of a loss, and take the step that it leaves."""
        if (found := notify(loss, parts)) is not None:
            Optimizer.step(self, found, parts if found is loss else ())

    def _notify(self, callbacks: UpdateCallbacks, loss: Tensor, parts: Sequence[Tensor]) -> Tensor | None:
        """Notify a callback of a loss, unless its step will be left out; see `UpdateCallbacks.notify`."""
        if (self.can_stop and self.is_stopped) or (self._bad.are_skipped and not torch.isfinite(loss)):
            return loss

        def step(found: Tensor) -> None:
            Optimizer.step(self, found, parts if found is loss else ())

        return callbacks.notify(self.name, loss, step)

    def _can_walk_memory(self) -> bool:
        """Return whether all parameters lie in memory as their moments do, where `Adam.step` can reach them."""
        return self._is_on_host and all(map(Tensor.is_contiguous, self.parameters))

    def _used(
        self, trained: list[Tensor], found: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], Gradients, Sequence[Tensor]]:
        """Return what to train, its gradients, and what of it may have gradients in other steps or processes only."""
        gradients = tuple([gradient for gradient in found if gradient is not None])
        if len(gradients) == len(found):
            return trained, gradients, ()
        unused = [p for p, gradient in zip(trained, found, strict=True) if gradient is None]
        self.unused.note(unused)
        if self._gathered is not None or self._all_reduce is not None:
            return trained, filled(trained, found), unused
        return [p for p, gradient in zip(trained, found, strict=True) if gradient is not None], gradients, ()

    def _nothing_gathered(self) -> Tensor:
        """Return the zeros that a group begins with: of all parameters' gradients, and of the loss."""
        return self._bad.gradient.new_zeros(len(self._bad.gradient) + 1)

    def _take_gathered(self, gathered: Tensor, num_steps: int) -> tuple[list[Tensor], Gradients, Tensor]:
        """Return what to train, the means of its gathered gradients and of the loss, and begin a new group."""
        mean = gathered / num_steps
        gathered.zero_()
        trained: list[Tensor] = [p for p in self.parameters if p.requires_grad]
        return trained, self._parts(mean[:-1], trained), mean[-1]

    def _apply(
        self, trained: Sequence[Tensor], gradients: Gradients, loss: Tensor, doubtful: Sequence[Tensor] = ()
    ) -> None:
        """Reduce, check, limit and apply gradients; leave a doubtful parameter alone where its gradient is 0."""
        if isinstance(self.method, Adam) and (torch.compiler.is_compiling() or not self._can_walk_memory()):
            self._apply_flat(self.method, trained, gradients, loss, doubtful)
            return
        # Looking at the gradients and deciding is quickest where it costs nothing.
        if self.can_stop and self.is_stopped:
            return
        if self._all_reduce is not None:
            gradients = self._parts(self._all_reduce(self._flat(trained, gradients)), trained)
        if doubtful:
            trained, gradients = without_zeros(trained, gradients, doubtful)
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
        self, rule: Adam, trained: Sequence[Tensor], gradients: Gradients, loss: Tensor, doubtful: Sequence[Tensor] = ()
    ) -> None:
        """Do the same without a branch, for graphs and for devices, where looking at a value would wait for it."""
        gradient = self._flat(trained, gradients)
        if self._all_reduce is not None:
            gradient = self._all_reduce(gradient)
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
        """Return a flat gradient within the limit, given its length; note its norm for who asked for it."""
        norm = self.limit.norm(gradient, length)
        if self._update.tells_norms and self.grad_norm is None:  # else it was noted before it was balanced
            self.grad_norm = norm
        return self.limit.clip(gradient, norm)

    def _flat(self, trained: Sequence[Tensor], gradients: Gradients) -> Tensor:
        return as_vector(self.parameters, trained, gradients)

    def _parts(self, vector: Tensor, trained: Sequence[Tensor]) -> Gradients:
        return in_parts(self.parameters, vector, trained)


class LossScaler:
    """Scales a loss; one for each optimizer, as the losses of an algorithm differ in size.

    Args:
        precision: the initial scale, and how it moves.
        device: where gradient steps run.
    """

    def __init__(self, precision: PrecisionParams, device: torch.device) -> None:
        self.precision = precision
        self.scale = torch.full((), float(precision.initial_loss_scale), device=device)
        self.num_good = torch.zeros((), device=device)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that a step changes."""
        return [self.scale, self.num_good]

    def update(self, is_finite: Tensor) -> None:
        """Take note of a step: lower the scale if its gradient was not finite, raise it after enough good ones."""
        precision, one_more = self.precision, self.num_good + 1
        grows = is_finite & (one_more >= precision.loss_scale_growth_interval)
        raised = self.scale * precision.loss_scale_growth
        raised = torch.where(grows & torch.isfinite(raised), raised, self.scale)
        self.scale.copy_(torch.where(is_finite, raised, self.scale * precision.loss_scale_backoff))
        self.num_good.copy_(torch.where(is_finite & ~grows, one_more, 0.0))

    def is_too_low(self) -> bool:
        """Return whether the scale is below the minimum; waits for the device."""
        return float(self.scale) < self.precision.min_loss_scale


AS_SAVED = "Build the networks as when it was saved"
COUNTS = ("num_skipped", "loss_scale", "num_good")
"""Scalars that are in a state if the plan of the run asked for them."""


def check_kind(name: str, state: State, current: State) -> None:
    """Check that a state is of the same update rule and the same parameters, of which the same are frozen.

    Raises:
        CheckpointError: it is not; the text begins with `name`.
    """
    if state.get("rule") != current["rule"]:
        rules = f"expected {current['rule']!r}, found {readable(state.get('rule'))}"
        raise CheckpointError(f"{name}: {rules}. Make the algorithm with the same optimizer.")
    for key, of_what in (("parameters", "the names of what is trained"), ("frozen", "which of them are frozen")):
        found = state.get(key, current[key])  # older files have neither
        is_plain = isinstance(found, list) and all(isinstance(item, str | bool) for item in found)
        if not is_plain or found != current[key]:
            hint = f"{AS_SAVED}; freeze layers after loading."
            raise CheckpointError(f"{name}.{key}: {of_what} differs from when it was saved. {hint}")


def check_of_plan(name: str, state: State, scalar: Tensor, gathered: Tensor) -> None:
    """Check what a state holds where a plan asked for it; a state of another plan may be loaded.

    Args:
        name: what the text of an error begins with.
        state: the state.
        scalar, gathered: tensors like those that it may hold.

    Raises:
        CheckpointError: something is of another shape, or no count.
    """
    for key, like in (dict.fromkeys(COUNTS, scalar) | {"gathered": gathered}).items():
        if key in state:
            check_like(f"{name}.{key}", like, state[key], f"{AS_SAVED}.")
        if key in state and key in COUNTS and not (state[key] > 0 if key == "loss_scale" else state[key] >= 0):
            rule = "a positive number" if key == "loss_scale" else "a non-negative number"
            raise CheckpointError(f"{name}.{key}: expected {rule}, found {float(state[key])}")
    num_gathered = state.get("num_gathered", 0)
    if not is_int(num_gathered) or num_gathered < 0 or (num_gathered > 0) != ("gathered" in state):
        raise CheckpointError(f"{name}.num_gathered: expected how many are gathered, found {readable(num_gathered)}")
