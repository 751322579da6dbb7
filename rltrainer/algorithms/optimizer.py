"""The one place where gradients are taken, checked, clipped and applied."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from rltrainer.algorithms.adam import Adam, TorchRule
from rltrainer.schedules import Schedule, value_at
from rltrainer.types import State

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Optimizer:
    """Minimises a loss over some parameters.

    A gradient step whose gradients are not finite is not applied; `fault` then names the first bad parameter.

    Args:
        modules: the modules to train, by name; the names appear in error texts only.
        lr: learning rate, or a schedule of it.
        max_grad_norm: gradients are scaled down to this global L2 norm; None does not clip.
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
        self._names = {parameter: name for name, parameter in reversed(named.items()) if parameter.requires_grad}
        self.parameters = list(dict.fromkeys(p for p in named.values() if p.requires_grad))
        self.schedule, self.max_grad_norm = lr, max_grad_norm
        self.rule: Adam | TorchRule = Adam(self.parameters, adam_eps)
        if factory is not None:
            self.rule = TorchRule(factory(self.parameters), self.parameters)
        self.fault: str | None = None
        self.set_progress(0.0)

    def set_progress(self, progress: float) -> None:
        """Apply the learning rate that belongs to this progress; it holds for a whole update step."""
        self.rule.lr = value_at(self.schedule, progress)

    def step(self, loss: Tensor) -> None:
        """Take the gradients of a scalar loss, clip them and apply them."""
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            # A norm is finite only where all gradients are.
            if not torch.isfinite(norm):
                self._note_fault(loss, gradients)
                return
            if self.max_grad_norm is not None:
                torch._foreach_mul_(gradients, (self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
            self.rule.step(gradients)

    def state_dict(self) -> State:
        """Return what the update rule remembers."""
        return self.rule.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.rule.load_state_dict(state)

    def _note_fault(self, loss: Tensor, gradients: tuple[Tensor, ...]) -> None:
        bad = next((p for p, g in zip(self.parameters, gradients, strict=True) if not torch.isfinite(g).all()), None)
        name = self._names[bad] if bad is not None else "all parameters together"
        self.fault = self.fault or f"the gradient of {name} is not finite (loss = {float(loss):g})"
