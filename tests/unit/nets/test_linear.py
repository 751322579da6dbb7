"""Linear layers of any size against `torch.nn.functional.linear`: values, gradients, and where each is done."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rltrainer.nets import linear as module
from rltrainer.nets.linear import is_large, linear
from rltrainer.nets.mlp import MLP, EnsembleMLP

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="needs a torch with oneDNN",
)


@pytest.fixture(autouse=True)
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use oneDNN without AVX-512 too: it is not faster there, but as right."""
    monkeypatch.setattr(module, "_HAS_ONEDNN", True)


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
