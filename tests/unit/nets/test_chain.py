"""Modules one after another: the numbers and the hooks of `nn.Sequential`."""

from typing import Any

import torch
from torch import nn

from rltrainer.nets.linear import Chain, run_through


def test_numbers_and_names_are_those_of_a_sequential() -> None:
    first, second, x = nn.Linear(3, 4), nn.Linear(4, 2), torch.randn(5, 3)
    chain, sequential = Chain(first, nn.Tanh(), second), nn.Sequential(first, nn.Tanh(), second)
    assert torch.equal(chain(x), sequential(x))
    assert list(chain.state_dict()) == list(sequential.state_dict())
    assert torch.equal(run_through([], x), x)


def test_a_hook_is_called_from_the_moment_it_is_set() -> None:
    chain, x, heard = Chain(nn.Linear(3, 4), nn.Tanh()), torch.randn(5, 3), list[str]()
    chain(x)

    def hear(module: nn.Module, args: Any, output: Any) -> None:
        heard.append(type(module).__name__)

    chain[1].register_forward_hook(hear)
    chain(x)
    assert heard == ["Tanh"]
    handle = nn.modules.module.register_module_forward_hook(hear)
    chain(x)
    handle.remove()
    assert heard == ["Tanh", "Linear", "Tanh", "Tanh", "Chain"]
