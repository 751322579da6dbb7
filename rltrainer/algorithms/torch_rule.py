"""Any `torch.optim` optimizer in the place of `Adam`."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.types import State


def rms_prop(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return RMSprop with decay 0.99 and epsilon 1e-5, A2C's optimizer in Stable-Baselines3.

    `A2CParams(optimizer=rl.rms_prop)`; `lr` overwrites its learning rate. PyTorch adds epsilon to the root and starts
    from 0. TensorFlow, and so the older baselines, add it under the root and start from 1, which makes the first steps
    smaller. A compiled step is broken at it, as at every `torch.optim` optimizer.
    """
    return torch.optim.RMSprop(parameters, alpha=0.99, eps=1e-5)


class TorchRule:
    """Any `torch.optim` optimizer, used like `Adam`.

    Args:
        optimizer: made over the parameters, in their order.
        parameters: what is trained.

    Raises:
        ParamsError: `optimizer` is none.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            rule = "must return a torch.optim.Optimizer"
            raise ParamsError(field_error_text("AlgorithmParams", "optimizer", rule, optimizer))
        self.optimizer, self.parameters = optimizer, list(parameters)

    @property
    def lr(self) -> float:
        """The learning rate of all parameter groups."""
        return float(self.optimizer.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = value

    def step(self, trained: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Apply gradients, one for each of all or some parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        for parameter, gradient in zip(trained, gradients, strict=True):
            # As `backward` makes them, laid out as the parameter and in memory of their own: an optimizer may walk
            # through raw memory, or write into them.
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
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
