"""Adam as one call for all parameters: `torch.optim.Adam.step` spends most of its time around that call."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rltrainer.types import State


class Adam:
    """Adam (Kingma & Ba 2015) with one step count for all parameters; the same numbers as `torch.optim.Adam`.

    Args:
        parameters: what is trained, in place.
        eps: added to the root of the second moment.
        betas: decay of the two moments.
    """

    def __init__(
        self, parameters: Sequence[Tensor], eps: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.parameters, self.eps, self.betas = list(parameters), eps, betas
        self.lr = 0.0
        self.mean = [torch.zeros_like(p) for p in self.parameters]
        self.square = [torch.zeros_like(p) for p in self.parameters]
        self.num_steps = torch.zeros((), device=self.parameters[0].device)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Apply gradients, one per parameter."""
        self.num_steps += 1
        torch._fused_adam_(  # what torch.optim.Adam(fused=True) calls
            self.parameters, list(gradients), self.mean, self.square, [], [self.num_steps] * len(self.parameters),
            lr=self.lr, beta1=self.betas[0], beta2=self.betas[1], weight_decay=0.0, eps=self.eps,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def state_dict(self) -> State:
        """Return the moments, the step count and the learning rate."""
        return {
            "rule": "Adam",
            "lr": self.lr,
            "mean": list(self.mean),
            "square": list(self.square),
            "num_steps": self.num_steps,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned, in place."""
        self.lr = state["lr"]
        own = [*self.mean, *self.square, self.num_steps]
        saved = [*state["mean"], *state["square"], state["num_steps"]]
        for target, source in zip(own, saved, strict=True):
            target.copy_(source)


class TorchRule:
    """Any `torch.optim` optimizer, used like `Adam`.

    Args:
        optimizer: made over the parameters, in their order.
        parameters: what is trained.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        self.optimizer, self.parameters = optimizer, list(parameters)

    @property
    def lr(self) -> float:
        """The learning rate of all parameter groups."""
        return float(self.optimizer.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = value

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Apply gradients, one per parameter."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    def state_dict(self) -> State:
        """Return the optimizer's moments and options; parameters are numbered in their order."""
        state = self.optimizer.state_dict()
        groups = [{key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]]
        return {
            "rule": type(self.optimizer).__name__,
            "state": {str(i): dict(entry) for i, entry in state["state"].items()},
            "groups": groups,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        current = self.optimizer.state_dict()["param_groups"]
        groups = [
            {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()}
            | {"params": group["params"]}
            for saved, group in zip(state["groups"], current, strict=True)
        ]
        moments = {int(i): entry for i, entry in state["state"].items()}
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
