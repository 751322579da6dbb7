"""The one place where gradients are taken and applied; see `transforms` for what happens between."""

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rltrainer.errors import CheckpointError, ParamsError, readable
from rltrainer.functional.trust_region import adapted_rate
from rltrainer.nets.target import Accumulation
from rltrainer.nets.weight_dtype import convert
from rltrainer.plan import UpdateCallbacks, UpdateParams, UpdatePlan
from rltrainer.schedules import Schedule, value_at
from rltrainer.state.codec import check_like, read
from rltrainer.types import State
from rltrainer.updates.adam import MISSED, Adam
from rltrainer.updates.gradient import Gradient
from rltrainer.updates.gradient_faults import BadGradients, UnusedParameters
from rltrainer.updates.torch_optimizer import TorchOptimizer
from rltrainer.updates.transforms import Accumulate, Check, Limit, Reduce, Scale
from rltrainer.validation.field_rules import NonNegativeInt

Transform = Callable[[Gradient], Gradient | None]
OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
AS_SAVED = "Build the networks as when it was saved"
LEAST = {"num_skipped": 0.0, "num_good": 0.0, "loss_scale": torch.finfo(torch.float32).tiny}
"""Scalars that are in a state if the plan of the run asked for them, with their smallest values."""


class Optimizer:
    """Minimises a loss over some parameters.

    A parameter stays as it is while it requires no gradient or the loss does not depend on it. A step whose gradient is
    not finite is not applied; `take_fault` then names the first bad parameter. After a step, the modules with a
    method `project_` bring their parameters back to where they must lie, such as rows to unit length. A second call
    must change nothing, as a step that is not finite may be followed by one.

    Args:
        modules: the modules to train, by name for error texts.
        lr: learning rate, or a schedule of it.
        max_grad_norm: global L2 norm that gradients are scaled down to; None does not clip. A plan may override it.
        adam_eps: epsilon of Adam.
        factory: from parameters to any `torch.optim` optimizer instead, whose learning rate `lr` overwrites.
        adam_betas: decay rates of Adam's averages of gradients and of their squares.
        weight_decay: share of the parameters that a step of Adam takes, times the learning rate (AdamW).
    """

    def __init__(
        self,
        modules: dict[str, nn.Module],
        lr: float | Schedule,
        max_grad_norm: float | None = None,
        adam_eps: float = 1e-8,
        factory: OptimizerFactory | None = None,
        adam_betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        named = {f"{name}.{key}": p for name, module in modules.items() for key, p in module.named_parameters()}
        # A shared encoder appears under two names and is trained once.
        self._names = {parameter: name for name, parameter in reversed(named.items())}
        self.parameters = list(dict.fromkeys(named.values()))
        if not self.parameters:
            raise ParamsError(f"Optimizer.modules: must have parameters; got {', '.join(modules) or 'no module'}")
        self.unused = UnusedParameters(modules, self.parameters, self._names)
        parts: Iterable[Any] = itertools.chain.from_iterable(module.modules() for module in modules.values())
        self._projected = [part for part in dict.fromkeys(parts) if hasattr(part, "project_")]
        self.schedule = lr
        self.method: Adam | TorchOptimizer = Adam(self.parameters, adam_eps, adam_betas, weight_decay)
        if factory is not None:
            self.method = TorchOptimizer(factory(self.parameters), self.parameters)
        device = self.parameters[0].device
        self._is_on_host = device.type == "cpu"
        self._bad = BadGradients([p.numel() for p in self.parameters], device)
        self.can_stop, self.is_stopped = False, torch.zeros((), dtype=torch.bool, device=device)
        self.has_moved = torch.zeros_like(self.is_stopped)  # since the update began, of a rate that adapts
        self.name = "loss"
        self.grad_norm: Tensor | None = None  # before clipping, if the plan sets a limit; its reader resets it
        self._update = UpdateParams()
        self._scale: Scale | None = None
        self._accumulate: Accumulate | None = None
        self._reduce = Reduce()
        self.max_grad_norm = max_grad_norm
        self.set_progress(0.0)
        if self.parameters[0].dtype == torch.float64:
            self.set_weight_dtype(torch.float64)

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the plan."""
        own = {name: value for name, value in vars(self).items() if name not in ("step", "transforms", "_of_balanced")}
        return own | {"_update": UpdateParams(), "_scale": None, "_accumulate": None, "_reduce": Reduce()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the copy's state, and the algorithm's own limit."""
        vars(self).update(state)
        self._arrange()

    @property
    def max_grad_norm(self) -> float | None:
        """The algorithm's own limit of the norm, for plans that set none."""
        return self._own_limit

    @max_grad_norm.setter
    def max_grad_norm(self, value: float | None) -> None:
        self._own_limit = value
        self._arrange()

    def _arrange(self) -> None:
        update, is_asked = self._update, self._update != UpdateParams() or self._scale is not None
        # A limit of each number takes the place of any limit of the norm.
        norm = None if update.max_grad_value is not None else update.max_grad_norm or self._own_limit
        self.limit = Limit(norm, update.grad_norm_type, update.max_grad_value)
        self._logs_norms = update.logs_norms
        # A gradient that is no longer than this is applied as it is: the largest of the lengths that are finite.
        largest = torch.finfo(self._bad.gradient.dtype).max
        check = Check(self._bad, self._scale, -1.0 if is_asked else largest if norm is None else norm - 1e-6)
        weigh, reduce = (self._reduce.weigh, self._reduce) if self._reduce.is_on else (None, None)
        note = self._note_move if self.method.adapts else None
        given = (self._scale, weigh, self._accumulate, self._unless_stopped, reduce, check, self.limit, note)
        self.transforms: list[Transform] = [transform for transform in given if transform is not None]
        self._of_balanced = [each for each in self.transforms if each not in (self._scale, weigh, reduce)]

    def set_weight_dtype(self, dtype: torch.dtype) -> None:
        """Bring moments and stored gradients to the parameters' format, in place."""
        self.method.set_weight_dtype(dtype)
        for tensor in (self._bad.gradient, *([] if self._accumulate is None else [self._accumulate.sums])):
            convert(tensor, dtype)
        self._arrange()  # for the largest number of the format

    def check_plan(self, plan: UpdatePlan) -> None:
        """Raise a `ParamsError` if a plan shares out a limit that is not set."""
        if plan.update.balance_grad_norms and plan.update.max_grad_norm is None and self.max_grad_norm is None:
            rule = "must be False without a limit of the norm, which it shares out"
            plan.update.raise_invalid("balance_grad_norms", rule, "Set max_grad_norm.")

    def gather_over(self, groups: Accumulation | None) -> None:
        """Average gradients over groups of steps from now on; None applies each step's."""
        if groups is not (None if self._accumulate is None else self._accumulate.groups):
            self._accumulate = None if groups is None else Accumulate(groups, self._bad.gradient)
            self._arrange()

    def attach(self, name: str, plan: UpdatePlan, is_compiled: bool, reduce: Reduce | None = None) -> None:
        """Apply a plan from the next step on; a compiled `step` leaves its graph for callbacks of its named loss."""
        self.name, precision, is_scaled = name, plan.precision, plan.precision.amp == "fp16"
        if (self._scale.precision if self._scale else None) != (precision if is_scaled else None):
            self._scale = Scale(precision, self._bad.loss.device) if is_scaled else None
        self._bad.follow(plan.skips_steps)
        self._update, self._reduce = plan.update, reduce or Reduce(plan, is_compiled)
        self._arrange()
        vars(self).pop("step", None)
        if plan.callbacks.on_loss is not None:
            notify: Any = partial(self._notify, plan.callbacks)
            if is_compiled:
                leave_graph: Any = torch.compiler.disable  # which takes seconds to import what it needs
                notify = leave_graph(notify)
            # Another `step` in the instance: without callbacks, no step asks whether there is one.
            vars(self)["step"] = partial(self._step_with_callback, notify)

    def set_progress(self, progress: float) -> None:
        """Start an update step: take the learning rate of this progress for all of it, unless the rate adapts."""
        if self.method.adapts:
            self.has_moved.zero_()
        else:
            self.method.lr = value_at(self.schedule, progress)
        if self.can_stop:
            self.is_stopped.zero_()

    def stop_above(self, limit: float, value: Tensor) -> None:
        """Stop the steps of this update, if it `can_stop` and a scalar, averaged over ranks, is above a limit."""
        self.is_stopped.logical_or_(self._reduce.mean(self._reduce.weighed(value)) > limit)

    def make_adaptive(self) -> None:
        """Let `adapt` change the learning rate, which then is state."""
        # Always float32: torch's compiler leaves out a change of an input [] in float64, which it takes for a constant.
        self.method.adapts, self.method.rate = True, self.method.rate.float()
        self._arrange()

    @torch.no_grad()
    def adapt(self, kl: Tensor, desired: float) -> None:
        """Change the learning rate for the coming step and all later ones, given KL(old || new) [] of this rank."""
        # Until a step was applied, the two policies are one, and rounding would decide.
        if self._accumulate is None or self._accumulate.groups.applies:
            rate, kl = self.method.rate, self._reduce.mean(self._reduce.weighed(kl))
            rate.copy_(torch.where(self.has_moved & ~self.is_stopped, adapted_rate(rate, kl, desired), rate))

    def step(self, loss: Tensor, parts: Sequence[Tensor] = ()) -> None:
        """Minimise a scalar loss by one step: scale, accumulate, reduce, check, limit and apply its gradient.

        `parts` are the terms whose sum the loss is, for a plan that balances them.
        """
        trained: list[Tensor] = [p for p in self.parameters if p.requires_grad]
        if not trained:
            return
        if len(parts) > 1 and self._update.balance_grad_norms:
            gradient, transforms = self._balanced(trained, parts, loss), self._of_balanced
        else:
            scaled = loss if self._scale is None else loss * self._scale.value
            found = torch.autograd.grad(scaled, trained, allow_unused=True)
            gradient, transforms = self._gradient(trained, found, loss), self.transforms
        with torch.no_grad():
            self._apply(gradient, transforms)

    @torch.no_grad()
    def apply_rest(self) -> None:
        """Apply the gathered gradient of a group that will not be full."""
        if self._accumulate is not None and not self._accumulate.groups.begins:
            trained = [p for p in self.parameters if p.requires_grad]
            rest = Gradient(self.parameters, trained, (), self._bad.loss, self.unused.last, self._is_flat())
            self._accumulate.average(rest, self._accumulate.groups.num_steps)
            self._apply(rest, self.transforms[self.transforms.index(self._accumulate) + 1 :])

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
        return None if self._scale is None else float(self._scale.value)

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
        gathered = [] if self._accumulate is None else [self._accumulate.sums]
        of_scale = [] if self._scale is None else [self._scale.value, self._scale.num_good]
        of_rate = [self.method.rate, self.has_moved] if self.method.adapts else []
        return [*self.parameters, *of_method, *self._bad.tensors, self.is_stopped, *gathered, *of_scale, *of_rate]

    @property
    def shared_tensors(self) -> list[Tensor]:
        """The tensors that are equal in all ranks: without the sums of a group, with the state of a torch optimizer."""
        states = self.method.optimizer.state if isinstance(self.method, TorchOptimizer) else {}
        moments = [x for p in self.parameters for x in states.get(p, {}).values() if isinstance(x, Tensor)]
        return [x for x in self.tensors if x is not (self._accumulate and self._accumulate.sums)] + moments

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
        if self._scale is not None:
            state |= {"loss_scale": self._scale.value, "num_good": self._scale.num_good}
        if self._accumulate is not None and not self._accumulate.groups.begins:
            state |= {"gathered": self._accumulate.sums, "num_gathered": self._accumulate.groups.num_steps}
        return state

    def check_state_dict(self, name: str, state: State) -> None:
        """Raise a `CheckpointError` that begins with `name` unless this is a state of this optimizer, of any plan."""
        own = self.state_dict()
        if state.get("rule") != own["rule"]:
            rules = f"expected {own['rule']!r}, found {readable(state.get('rule'))}"
            raise CheckpointError(f"{name}: {rules}. Make the algorithm with the same optimizer.")
        of_parameters = {"parameters": "the names of what is trained", "frozen": "which of them are frozen"}
        for key, of_what in of_parameters.items():
            if read(list[str] if key == "parameters" else list[bool], state.get(key), f"{name}.{key}") != own[key]:
                hint = f"{AS_SAVED}; freeze layers after loading."
                raise CheckpointError(f"{name}.{key}: {of_what} differs from when it was saved. {hint}")
        self.method.check_state_dict(name, state)
        for key, least in (LEAST | {"gathered": None}).items():
            if key in state:
                like = Accumulate(Accumulation(1), self._bad.gradient).sums if key == "gathered" else self._bad.num
                check_like(f"{name}.{key}", like, state[key], f"{AS_SAVED}.", least)
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
        if self._scale is not None:
            initial = torch.tensor(self._scale.precision.initial_loss_scale)
            self._scale.value.copy_(state.get("loss_scale", initial))
            self._scale.num_good.copy_(state.get("num_good", torch.zeros(())))
        if self._accumulate is not None:
            # A file of larger groups, or of none, begins a new one.
            groups, num_steps = self._accumulate.groups, state.get("num_gathered", 0)
            groups.num_steps = num_steps if num_steps < groups.size else 0
            self._accumulate.sums.copy_(torch.zeros(()) if groups.begins else state["gathered"])

    def _step_with_callback(self, notify: Any, loss: Tensor, parts: Sequence[Tensor] = ()) -> None:
        if (found := notify(loss, parts)) is not None:
            Optimizer.step(self, found, parts if found is loss else ())

    def _notify(self, callbacks: UpdateCallbacks, loss: Tensor, parts: Sequence[Tensor]) -> Tensor | None:
        """Pass a loss to a callback, unless its step will be left out; see `UpdateCallbacks.notify`."""
        if (self.can_stop and self.is_stopped) or (self._bad.are_skipped and not torch.isfinite(loss)):
            return loss
        step = partial(Optimizer.step, self)
        return callbacks.notify(self.name, loss, lambda found: step(found, parts if found is loss else ()))

    def _is_flat(self) -> bool:
        """Return whether a gradient becomes a vector: in a graph, and where `Adam.step` cannot walk through memory."""
        can_walk = self._is_on_host and not torch.compiler.is_compiling()
        return isinstance(self.method, Adam) and not (can_walk and all(map(Tensor.is_contiguous, self.parameters)))

    def _gradient(self, trained: Sequence[Tensor], found: Sequence[Tensor | None], loss: Tensor) -> Gradient:
        """Return what autograd found; without the parameters that the loss does not depend on, if that is final."""
        parts = [x for x in found if x is not None]
        unused: list[Tensor] = []
        if len(parts) < len(found):
            unused = [p for p, x in zip(trained, found, strict=True) if x is None]
            self.unused.note(unused)
            if self._accumulate is None and not self._reduce.is_on:
                trained, unused = [p for p, x in zip(trained, found, strict=True) if x is not None], []
            else:
                parts = filled(trained, found)
        return Gradient(self.parameters, trained, parts, loss.detach(), unused, self._is_flat())

    def _balanced(self, trained: Sequence[Tensor], losses: Sequence[Tensor], loss: Tensor) -> Gradient:
        """Return a gradient to which each part of a loss contributes the same norm, averaged over ranks."""
        scale = 1.0 if self._scale is None else self._scale.value
        each = [torch.autograd.grad(x * scale, trained, retain_graph=True, allow_unused=True) for x in losses]
        with torch.no_grad():
            whole = [self._gradient(trained, filled(trained, found), loss) for found in each]
            vectors = torch.stack([gradient.joined() for gradient in whole]) / scale
            if self._reduce.is_on:
                both = torch.cat([vectors.flatten(), loss.view(1)])
                averages = self._reduce.mean(self._reduce.weighed(both))
                vectors, loss = averages[:-1].view_as(vectors), averages[-1]
            plain = vectors.sum(0)
            self.grad_norm = self.limit.norm(plain, torch.linalg.vector_norm(plain))
            parts = whole[0].split(self.limit.balanced(vectors))
        are_unused = [all([gradient is None for gradient in found]) for found in zip(*each, strict=True)]
        return self._gradient(trained, [None if no else x for x, no in zip(parts, are_unused, strict=True)], loss)

    def _unless_stopped(self, gradient: Gradient) -> Gradient | None:
        """Let a gradient pass while the update goes on."""
        if self.can_stop and gradient.is_flat:
            gradient.applies = ~self.is_stopped
        elif self.can_stop and self.is_stopped:
            return None
        return gradient

    def _note_move(self, gradient: Gradient) -> Gradient:
        """Note that a gradient is applied, if it is."""
        self.has_moved.logical_or_(~self.is_stopped if gradient.applies is None else gradient.applies)
        return gradient

    def _apply(self, gradient: Gradient, transforms: Sequence[Transform]) -> None:
        """Apply a gradient as the transforms leave it."""
        for transform in transforms:
            if (found := transform(gradient)) is None:
                return
            gradient = found
        if self._logs_norms and self.grad_norm is None:  # else it was kept before it was balanced
            self.grad_norm = gradient.norm
        if gradient.vector is None:
            self.method.step(gradient.trained, gradient.parts)
        elif isinstance(self.method, Adam) and gradient.applies is not None:
            self.method.step_flat(gradient.trained, gradient.vector, gradient.applies, gradient.doubtful)
        for module in self._projected:
            module.project_()


def filled(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """Return gradients with zeros where there is none."""
    return [torch.zeros_like(p) if x is None else x for p, x in zip(parameters, gradients, strict=True)]
