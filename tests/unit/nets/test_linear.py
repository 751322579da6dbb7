"""Large products against `torch.nn.functional.linear`, chains against `nn.Sequential`, and changes of modules."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rltrainer.nets import linear as module
from rltrainer.nets.linear import Chain, ModuleTree, is_large, linear, run_through
from rltrainer.nets.mlp import EnsembleMLP

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="needs a torch with oneDNN",
)


@pytest.fixture(autouse=True)
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use oneDNN where it is not faster too, but as right."""
    monkeypatch.setattr(module, "_uses_onednn", True)


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every product as a large one."""
    monkeypatch.setattr(module, "MIN_PRODUCT", 0)


def operands(*, transposed: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    x, bias = torch.randn(5, 7), torch.randn(3)
    weight = torch.randn(7, 3).t() if transposed else torch.randn(3, 7)
    return x.requires_grad_(), weight.detach().requires_grad_(), bias.requires_grad_()


@pytest.mark.usefixtures("every_size")
@pytest.mark.parametrize("transposed", [False, True])
def test_values_and_gradients_are_those_of_torch(transposed: bool) -> None:
    x, weight, bias = operands(transposed=transposed)
    assert is_large(x, 3)
    expected, found = functional.linear(x, weight, bias), linear(x, weight, bias)
    torch.testing.assert_close(found, expected)
    factor = torch.randn(5, 3)
    mine, theirs = (torch.autograd.grad((y * factor).sum(), (x, weight, bias)) for y in (found, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("every_size")
def test_second_derivatives_are_those_of_torch_and_unneeded_gradients_are_not_computed() -> None:
    x, weight, bias = operands()

    def penalty(product: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(product.square().sum(), x, create_graph=True)
        (of_weight,) = torch.autograd.grad(gradient.square().sum(), weight)
        return of_weight

    torch.testing.assert_close(penalty(linear(x, weight, None)), penalty(functional.linear(x, weight)))
    (of_weight,) = torch.autograd.grad(linear(x.detach(), weight, bias.detach()).sum(), (weight,))
    torch.testing.assert_close(of_weight, x.detach().sum(0).expand(3, 7))


def test_size_type_and_format_decide() -> None:
    x = torch.zeros(256, 256)
    assert is_large(x, 256)
    assert not is_large(torch.zeros(64, 64), 64)
    assert not is_large(x.double(), 256)
    assert not is_large(x.view(2, 128, 256), 256)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_large(x, 256)
    with module.large_products_by("torch"):
        assert not is_large(x, 256)
        with module.large_products_by("onednn"):
            assert is_large(x, 256)
    assert is_large(x, 256)


@pytest.mark.usefixtures("every_size")
def test_a_hooked_layer_of_an_ensemble_is_called() -> None:
    ensemble = EnsembleMLP(2, (4, 5), nn.ReLU)
    shapes: list[torch.Size] = []
    ensemble.layers[0].register_forward_hook(lambda layer, args, output: shapes.append(output.shape))
    ensemble(torch.randn(6, 4))
    assert shapes == [torch.Size([2, 6, 5])]


def test_the_processor_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    zen_5, later = "AMD64 Family 26 Model 2 Stepping 1, AuthenticAMD", "Family 27, AuthenticAMD"
    others = [
        ("AVX512", "Family 25, AuthenticAMD"),
        ("AVX512", "Family 26, GenuineIntel"),
        ("AVX512", "AuthenticAMD"),
        ("AVX512", ""),
        ("AVX2", zen_5),
        ("", ""),
    ]
    assert {module.faster_library("AVX512", name) for name in (zen_5, later)} == {"onednn"}
    assert {module.faster_library(*other) for other in others} == {"torch"}
    cpuinfo = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel name\t: Xeon\n"
    monkeypatch.setattr(module.Path, "is_file", lambda path: True)
    monkeypatch.setattr(module.Path, "read_text", lambda path, errors: cpuinfo + cpuinfo)
    assert module._processor() == "Family 6, GenuineIntel"
    monkeypatch.setattr(module.Path, "is_file", lambda path: False)
    monkeypatch.setattr(module.platform, "processor", lambda: "Intel64 Family 6 Model 85, GenuineIntel")
    assert module._processor() == "Intel64 Family 6 Model 85, GenuineIntel"


def test_what_a_run_has_chosen_holds_on_another_machine(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    for here, elsewhere in (("torch", "onednn"), ("onednn", "torch")):
        monkeypatch.setattr(module, "_FASTER", here)
        assert module.choose_library("auto", "auto") == here
        assert module.choose_library("auto", elsewhere) == elsewhere
        assert module.choose_library(elsewhere, elsewhere) == elsewhere
    assert caplog.text == ""
    monkeypatch.setattr(module, "_HAS_ONEDNN", False)
    assert module.choose_library("auto", "onednn") == "torch"
    assert "large products were oneDNN's, which this PyTorch lacks" in caplog.text


# Modules without the overhead of calls


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
