"""Chains leave out the calls of modules, but never a hook."""

import pytest
import torch
from torch import nn

from rltrainer.nets.chain import Chain, apply_linear

REGISTER = [
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
]


@pytest.mark.parametrize("register", REGISTER)
@pytest.mark.parametrize("runs_layer", [lambda layer, x: Chain(layer)(x), apply_linear])
def test_a_hook_of_any_kind_is_called_once(runs_layer: object, register: str) -> None:
    layer, called = nn.Linear(2, 2), []
    getattr(layer, register)(lambda *args: called.append(1))
    runs_layer(layer, torch.ones(1, 2, requires_grad=True)).sum().backward()  # type: ignore[operator]
    assert called == [1]
