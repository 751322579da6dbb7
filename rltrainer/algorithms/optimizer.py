"""The one place where gradients are taken, checked, clipped and applied."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from rltrainer.schedules import Schedule, value_at
from rltrainer.types import State

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Optimizer:
    """Minimises a loss over some parameters with any `torch.optim` optimizer.

    A gradient step whose gradients are not finite is not applied; `fault` then names the first bad parameter.

    Args:
        modules: the modules to train, by name; the names appear in error texts only.
        lr: learning rate, or a schedule of it.
        max_grad_norm: gradients are scaled down to this global L2 norm; None does not clip.
        factory: from parameters to an optimizer; its learning rate is overwritten by `lr`.
    """

    def __init__(
        self,
        modules: dict[str, nn.Module],
        lr: float | Schedule,
        max_grad_norm: float | None,
        factory: OptimizerFactory,
    ) -> None:
        named = {f"{name}.{key}": p for name, module in modules.items() for key, p in module.named_parameters()}
        # A shared encoder appears under two names and is trained once.
        self._names = {parameter: name for name, parameter in reversed(named.items()) if parameter.requires_grad}
        self.parameters = list(dict.fromkeys(p for p in named.values() if p.requires_grad))
        self.lr, self.max_grad_norm = lr, max_grad_norm
        self.torch_optimizer = factory(self.parameters)
        self.fault: str | None = None
        self.set_progress(0.0)

    def set_progress(self, progress: float) -> None:
        """Apply the learning rate that belongs to this progress; it holds for a whole update step."""
        lr = value_at(self.lr, progress)
        for group in self.torch_optimizer.param_groups:
            group["lr"] = lr

    def step(self, loss: Tensor) -> None:
        """Take the gradients of a scalar loss, clip them and apply them."""
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            # `stack` of norms overflows only where a norm does, so a finite result means finite gradients.
            if not torch.isfinite(norm):
                self._note_fault(loss, gradients)
                return
            if self.max_grad_norm is not None:
                torch._foreach_mul_(gradients, (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.torch_optimizer.step()

    def state_dict(self) -> State:
        """Return the optimizer's moments and options; parameters are numbered in their order."""
        state = self.torch_optimizer.state_dict()
        groups = [{key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]]
        return {"state": {str(i): dict(entry) for i, entry in state["state"].items()}, "groups": groups}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        current = self.torch_optimizer.state_dict()["param_groups"]
        groups = [
            {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()}
            | {"params": group["params"]}
            for saved, group in zip(state["groups"], current, strict=True)
        ]
        moments = {int(i): entry for i, entry in state["state"].items()}
        self.torch_optimizer.load_state_dict({"state": moments, "param_groups": groups})

    def _note_fault(self, loss: Tensor, gradients: tuple[Tensor, ...]) -> None:
        bad = next((p for p, g in zip(self.parameters, gradients, strict=True) if not torch.isfinite(g).all()), None)
        name = self._names[bad] if bad is not None else "all parameters together"
        self.fault = self.fault or f"the gradient of {name} is not finite (loss = {float(loss):g})"
