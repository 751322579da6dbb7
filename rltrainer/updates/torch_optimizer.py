"""Any `torch.optim` optimizer in the place of `Adam`."""

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim

from rltrainer.errors import CheckpointError, ParamsError, readable
from rltrainer.nets.weight_dtype import cast
from rltrainer.state import registry
from rltrainer.state.codec import check_like, read
from rltrainer.types import State
from rltrainer.validation.field_rules import is_finite

NOT_NEGATIVE = {"lr", "step", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf", "mu_product", "acc_delta"}
"""Numbers in the state or options of PyTorch's optimizers that are counts, or that a root is taken of."""
SAME = "Make the algorithm with the same optimizer, over the same parameters."


def rms_prop(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return RMSprop with decay 0.99 and epsilon 1e-5, A2C's optimizer in Stable-Baselines3."""
    # `A2CParams(optimizer=rl.rms_prop)`; `lr` overwrites its learning rate. PyTorch adds epsilon to the root and starts
    # from 0. TensorFlow, and so the older baselines, add it under the root and start from 1, which makes the first
    # steps smaller. A compiled step is broken at it, as at every `torch.optim` optimizer.
    return torch.optim.RMSprop(parameters, alpha=0.99, eps=1e-5)


registry.add_values(rms_prop, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.RMSprop, optim.SGD)


class TorchOptimizer:
    """Any `torch.optim` optimizer, used like `Adam`; it was made over the parameters, in their order."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ParamsError.about("AlgorithmParams", "optimizer", "must return a torch.optim.Optimizer", optimizer)
        self.optimizer, self.parameters = optimizer, list(parameters)
        self.adapts, self.rate = False, torch.zeros((), device=self.parameters[0].device)  # see `Adam`

    @property
    def lr(self) -> float:
        """The learning rate of all parameter groups."""
        return float(self.rate if self.adapts else self.optimizer.param_groups[0]["lr"])

    @lr.setter
    def lr(self, value: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = value
        self.rate.fill_(value)

    def set_weight_dtype(self, dtype: torch.dtype) -> None:
        """Bring the moments to the parameters' format; step counts keep theirs, as when PyTorch loads a state."""
        for moments in self.optimizer.state.values():
            moments.update({name: cast(value, dtype) for name, value in moments.items() if name != "step"})

    def step(self, trained: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Apply gradients, one for each of all or some parameters."""
        if self.adapts:
            self.lr = self.lr
        for parameter in self.parameters:
            parameter.grad = None
        for parameter, gradient in zip(trained, gradients, strict=True):
            # As `backward` makes them, laid out as the parameter and in memory of their own: an optimizer may walk
            # through raw memory, or write into them.
            parameter.grad = torch.empty_like(parameter).copy_(gradient)
        self.optimizer.step()

    def state_dict(self) -> State:
        """Return the optimizer's moments and options; parameters are numbered in their order."""
        if self.adapts:  # after a step that was left out, the groups have an older rate
            self.lr = self.lr
        state = self.optimizer.state_dict()
        sizes = [len(group.pop("params")) for group in state["param_groups"]]
        moments = {str(i): dict(entry) for i, entry in state["state"].items()}
        rule = type(self.optimizer).__name__
        return {"rule": rule, "state": moments, "groups": state["param_groups"], "group_sizes": sizes}

    def check_state_dict(self, name: str, state: State) -> None:
        """Raise a `CheckpointError` that begins with `name` unless this is a state of such an optimizer.

        A copy of the optimizer takes one step, and its state is compared.
        """
        own, sizes = self.state_dict(), read(list[int], state.get("group_sizes"), f"{name}.group_sizes")
        groups = read(list[dict[str, Any]], state.get("groups"), f"{name}.groups")
        moments = read(dict[str, dict[str, Any]], state.get("state"), f"{name}.state")
        if sizes != own["group_sizes"] or len(groups) != len(sizes):
            text = f"expected parameter groups of the sizes {own['group_sizes']}, found {sizes}"
            raise CheckpointError(f"{name}: {text}. {SAME}")
        for i, (group, current) in enumerate(zip(groups, own["groups"], strict=True)):
            _check_entry(f"{name}.groups.{i}", group, current, may_lack=True)
        try:
            try:
                trial = self._trial(groups)
            except KeyError:  # it makes its moments when it is built, as Adagrad of torch 2.11
                trial = self._trial(groups, keeps_moments=True)
        except Exception as error:
            raise CheckpointError(f"{name}: its options do not work ({type(error).__name__}: {error})") from error
        expected = {str(i): entry for i, entry in trial.state_dict()["state"].items()}
        # There are none before the first step, nor of parameters that were frozen in all steps.
        if not moments.keys() <= expected.keys():
            found = f"moments of {len(moments)} parameters, expected {len(expected)}"
            raise CheckpointError(f"{name}: holds {found}. {SAME}")
        for i, entry in moments.items():
            _check_entry(f"{name}.state.{i}", entry, expected[i])

    def _trial(self, groups: list[State], keeps_moments: bool = False) -> torch.optim.Optimizer:
        """Return a copy of the optimizer that has taken a step with these options."""
        trial = copy.deepcopy(self.optimizer)
        self._load(trial, trial.state_dict()["state"] if keeps_moments else {}, groups)
        for parameter in itertools.chain.from_iterable(group["params"] for group in trial.param_groups):
            parameter.grad = torch.zeros_like(parameter)
        type(trial).step(trial)  # a learning-rate scheduler puts a method of the original into the copy
        return trial

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned and `check_state_dict` has checked."""
        moments = {int(i): copy.deepcopy(entry) for i, entry in state["state"].items()}
        self._load(self.optimizer, moments, state["groups"])
        self.rate.fill_(self.optimizer.param_groups[0]["lr"])

    @staticmethod
    def _load(optimizer: torch.optim.Optimizer, moments: dict[int, State], groups: list[State]) -> None:
        merged = [
            current | {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()}
            for saved, current in zip(groups, optimizer.state_dict()["param_groups"], strict=True)
        ]
        optimizer.load_state_dict({"state": moments, "param_groups": merged})


def _check_entry(name: str, saved: State, expected: State, may_lack: bool = False) -> None:
    """Check that a mapping has the names of another, and values like it; older releases of torch had fewer options."""
    if saved.keys() - expected.keys() or not (may_lack or len(saved) == len(expected)):
        raise CheckpointError(f"{name}: expected {list(expected)}, found {list(saved)}. {SAME}")
    for key, value in saved.items():
        like = expected[key]
        if isinstance(value, Tensor) and isinstance(like, Tensor):
            check_like(f"{name}.{key}", like, value, SAME)
        elif not _is_like(value, like):
            text = f"expected a value like {readable(like)}, found {readable(value)}"
            raise CheckpointError(f"{name}.{key}: {text}. {SAME}")
        if key in NOT_NEGATIVE and (torch.as_tensor(value) < 0).any():
            raise CheckpointError(f"{name}.{key}: is negative")


def _is_like(value: Any, like: Any) -> bool:
    """Return whether a value is of the same kind: finite numbers, flags, texts, tuples of these; None fits any."""
    if value is None or like is None:
        return value is None or isinstance(value, bool | int | float | str)
    if isinstance(value, list | tuple) and isinstance(like, list | tuple):
        return len(value) == len(like) and all(map(_is_like, value, like))
    if isinstance(like, int | float) and not isinstance(like, bool):
        return is_finite(value)
    return type(value) is type(like) and not isinstance(value, Tensor)
