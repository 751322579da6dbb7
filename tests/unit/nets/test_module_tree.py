"""A look at a tree of modules returns the same list for as long as nothing has changed."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rltrainer.nets.linear import ModuleTree

CHANGES: dict[str, Callable[[nn.Sequential], Any]] = {
    "appended": lambda net: net.append(nn.ReLU()),
    "inserted": lambda net: net.insert(0, nn.ReLU()),
    "replaced": lambda net: net.__setitem__(1, nn.ReLU()),
    "within": lambda net: net[2].append(nn.ReLU()),  # type: ignore[operator]  # an empty Sequential
    "a leaf's": lambda net: setattr(net[1], "part", nn.ReLU()),
    "a parameter": lambda net: setattr(net[0], "weight", nn.Parameter(torch.zeros(2, 2))),
    "parametrized": lambda net: nn.utils.parametrize.register_parametrization(net[0], "weight", nn.Identity()),
    "hooked": lambda net: net[1].register_forward_hook(lambda *args: None),
    "hooked backwards": lambda net: net[0].register_full_backward_hook(lambda *args: None),
}


def make() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Sequential())


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_once(name: str) -> None:
    net = make()
    tree = ModuleTree([net])
    before = tree.look()
    assert tree.look() is before
    handle = CHANGES[name](net)
    after = tree.look()
    assert after is not before
    assert tree.look() is after
    assert tree.modules == list(net.modules())
    if name.startswith("hooked"):
        handle.remove()
        assert tree.look() == before


def test_hooks_and_numbers_elsewhere_change_nothing() -> None:
    net = make()
    tree = ModuleTree([net])
    before = tree.look()
    nn.Linear(1, 1).register_forward_hook(lambda *args: None)
    net.train(False)
    net[0].weight.data.zero_()
    assert tree.look() is before


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_looks_at_the_copied_network(duplicate: Callable[[Any], Any]) -> None:
    net = make()
    copied_net, copied = duplicate((net, ModuleTree([net])))
    before = copied.look()
    net.append(nn.ReLU())
    assert copied.look() is before
    copied_net.append(nn.ReLU())
    assert copied.look() is not before
