"""Perceptrons, their initialisation, and the ensemble against its members one by one."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltrainer.nets.mlp import MLP, EnsembleLinear, EnsembleMLP, orthogonal_


def test_mlp_has_an_activation_after_every_layer() -> None:
    network, x = MLP((3, 5, 2), nn.Tanh), torch.randn(4, 3)
    first, second = network.layers
    torch.testing.assert_close(network(x), second(first(x).tanh()).tanh())


def test_mlp_without_layers_passes_its_input() -> None:
    x = torch.randn(4, 3)
    assert torch.equal(MLP((3,), nn.Tanh)(x), x)


def test_orthogonal_rows_have_the_length_of_the_gain() -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))
    assert orthogonal_(module, 2.0) is module
    for layer in (module[0], module[2]):
        weight = layer.weight.detach()
        torch.testing.assert_close(weight @ weight.T, 4 * torch.eye(len(weight)), atol=1e-5, rtol=0)
    assert module[0].bias.tolist() == [0.0] * 4


def test_ensemble_layer_starts_as_a_linear_layer_does() -> None:
    layer = EnsembleLinear(10, 16, 100)
    for parameter in (layer.weight, layer.bias):
        assert parameter.abs().max() <= 0.25  # 1 / sqrt(16)
        assert parameter.std().item() == pytest.approx(0.25 / math.sqrt(3), rel=0.1)


def member(ensemble: EnsembleMLP, e: int, x: Tensor) -> Tensor:
    """Evaluate one member with nothing but linear layers and ReLU."""
    layers = [layer for layer in ensemble.layers if isinstance(layer, EnsembleLinear)]
    for layer in layers[:-1]:
        x = F.linear(x, layer.weight[e].T, layer.bias[e, 0]).relu()
    return F.linear(x, layers[-1].weight[e].T, layers[-1].bias[e, 0]).squeeze(-1)


@pytest.mark.parametrize("hidden_sizes", [(), (7,), (7, 5)])
def test_ensemble_equals_its_members(hidden_sizes: tuple[int, ...]) -> None:
    ensemble = EnsembleMLP(3, 4, hidden_sizes, nn.ReLU)
    x = torch.randn(6, 4)
    output = ensemble(x)
    assert output.shape == (3, 6)
    torch.testing.assert_close(output, torch.stack([member(ensemble, e, x) for e in range(3)]))


def test_members_start_apart_in_every_layer() -> None:
    for parameter in EnsembleMLP(3, 4, (7, 5), nn.ReLU).parameters():
        assert len(parameter.detach().unique(dim=0)) == 3


def test_members_get_gradients_of_their_own_output_only() -> None:
    ensemble = EnsembleMLP(2, 4, (5,), nn.ReLU)
    ensemble(torch.randn(6, 4))[0].sum().backward()
    for parameter in ensemble.parameters():
        assert parameter.grad is not None
        assert parameter.grad[0].abs().sum() > 0
        assert parameter.grad[1].abs().sum() == 0
