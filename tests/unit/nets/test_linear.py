"""Linear layers of any size against `torch.nn.functional.linear`: values, gradients, and where each is done."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rltrainer.nets import linear as module
from rltrainer.nets.linear import choose_library, faster_library, is_large, large_products_by, linear
from rltrainer.nets.mlp import MLP, EnsembleMLP

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
    for mine, theirs in zip(
        torch.autograd.grad((found * factor).sum(), (x, weight, bias)),
        torch.autograd.grad((expected * factor).sum(), (x, weight, bias)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("every_size")
def test_second_derivatives_are_those_of_torch() -> None:
    x, weight, _ = operands()

    def penalty(product: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(product.square().sum(), x, create_graph=True)
        (of_weight,) = torch.autograd.grad(gradient.square().sum(), weight)
        return of_weight

    torch.testing.assert_close(penalty(linear(x, weight, None)), penalty(functional.linear(x, weight)))


@pytest.mark.usefixtures("every_size")
def test_gradients_that_nobody_needs_are_not_computed() -> None:
    x, weight, bias = operands()
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


def test_perceptrons_give_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(32, 6)
    networks: list[nn.Module] = [MLP((6, 16, 8), nn.ReLU), EnsembleMLP(3, 6, (16, 8), nn.ReLU)]
    for network in networks:
        parameters = list(network.parameters())
        expected = network(x)
        of_expected = torch.autograd.grad(expected.sum(), parameters)
        with monkeypatch.context() as every_size:
            every_size.setattr(module, "MIN_PRODUCT", 0)
            found = network(x)
            of_found = torch.autograd.grad(found.sum(), parameters)
        torch.testing.assert_close(found, expected)
        for mine, theirs in zip(of_found, of_expected, strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("every_size")
def test_a_hooked_layer_of_an_ensemble_is_called() -> None:
    ensemble = EnsembleMLP(2, 4, (5,), nn.ReLU)
    shapes: list[torch.Size] = []
    ensemble.layers[0].register_forward_hook(lambda layer, args, output: shapes.append(output.shape))
    ensemble(torch.randn(6, 4))
    assert shapes == [torch.Size([2, 6, 5])]


@pytest.mark.parametrize(
    ("instructions", "maker", "library"),
    [
        ("AVX512", "AuthenticAMD", "onednn"),
        ("AVX512", "AMD64 Family 26 Model 2 Stepping 1, AuthenticAMD", "onednn"),  # on Windows
        ("AVX512", "HygonGenuine", "onednn"),
        ("AVX512", "GenuineIntel", "torch"),
        ("AVX512", "CentaurHauls", "torch"),
        ("AVX512", "", "torch"),
        ("AVX2", "AuthenticAMD", "torch"),
        ("DEFAULT", "", "torch"),
    ],
)
def test_the_maker_of_the_processor_decides(instructions: str, maker: str, library: str) -> None:
    assert faster_library(instructions, maker) == library


def test_what_a_run_has_chosen_holds_on_another_machine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for here, elsewhere in (("torch", "onednn"), ("onednn", "torch")):
        monkeypatch.setattr(module, "_FASTER", here)
        assert choose_library("auto", "auto") == here
        assert choose_library("auto", elsewhere) == elsewhere
        assert choose_library(elsewhere, elsewhere) == elsewhere
    assert caplog.text == ""
    monkeypatch.setattr(module, "_HAS_ONEDNN", False)
    assert choose_library("auto", "onednn") == "torch"
    assert "large products were oneDNN's, which this PyTorch lacks" in caplog.text


def test_a_library_holds_inside_only() -> None:
    x = torch.zeros(256, 256)
    with large_products_by("torch"):
        assert not is_large(x, 256)
        with large_products_by("onednn"):
            assert is_large(x, 256)
    assert is_large(x, 256)


def test_the_maker_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Xeon\n"
    monkeypatch.setattr(module.Path, "is_file", lambda path: True)
    monkeypatch.setattr(module.Path, "read_text", lambda path, errors: cpuinfo)
    assert module._maker() == "GenuineIntel"
    monkeypatch.setattr(module.Path, "is_file", lambda path: False)
    monkeypatch.setattr(module.platform, "processor", lambda: "Intel64 Family 6 Model 85, GenuineIntel")
    assert module._maker() == "Intel64 Family 6 Model 85, GenuineIntel"
