"""Perceptrons, their initialisation, the ensemble against its members, and dropout by masks that are state."""

import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

from rltrainer.errors import ParamsError
from rltrainer.nets import mlp
from rltrainer.nets.mlp import MLP, Dropout, EnsembleLinear, EnsembleMLP, PerMember, orthogonal_


def test_mlp_has_an_activation_after_every_layer() -> None:
    network, x = MLP((3, 5, 2), nn.Tanh), torch.randn(4, 3)
    first, second = network.layers
    torch.testing.assert_close(network(x), second(first(x).tanh()).tanh())
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
    ensemble = EnsembleMLP(3, (4, *hidden_sizes), nn.ReLU)
    x = torch.randn(6, 4)
    output = ensemble(x)
    assert output.shape == (3, 6)
    torch.testing.assert_close(output, torch.stack([member(ensemble, e, x) for e in range(3)]))
    torch.testing.assert_close(ensemble(x, 2), output[:2])


def test_members_start_apart_and_get_gradients_of_their_own_output_only() -> None:
    ensemble = EnsembleMLP(2, (4, 5), nn.ReLU)
    ensemble(torch.randn(6, 4))[0].sum().backward()
    for parameter in ensemble.parameters():
        assert len(parameter.detach().unique(dim=0)) == 2
        assert parameter.grad is not None
        assert parameter.grad[0].abs().sum() > 0
        assert parameter.grad[1].abs().sum() == 0


STATEFUL = {
    "PReLU": nn.PReLU,
    "LayerNorm": lambda: nn.LayerNorm(6),
    "LayerNorm from the width": nn.LayerNorm,
    "BatchNorm": nn.BatchNorm1d,
    "BatchNorm without statistics": lambda width: nn.BatchNorm1d(width, affine=False, track_running_stats=False),
    "both": lambda width: nn.Sequential(nn.LayerNorm(width), nn.PReLU()),
}
stateful = pytest.mark.parametrize("activation", STATEFUL.values(), ids=STATEFUL.keys())


@stateful
def test_every_layer_has_an_activation_of_its_own(activation: Any) -> None:
    network, x = MLP((3, 6, 6), activation), torch.randn(4, 3)
    assert len(set(network.activations)) == 2
    expected = x
    for layer, its_own in zip(network.layers, network.activations, strict=True):
        expected = copy.deepcopy(its_own)(layer(expected))  # a copy: statistics move once per call
    torch.testing.assert_close(network(x), expected)


def test_activations_without_parameters_leave_the_names_of_files_as_they_were() -> None:
    assert list(MLP((3, 5, 2), nn.Tanh).state_dict()) == [
        "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias",
    ]  # fmt: skip
    assert list(EnsembleMLP(2, (3, 5), nn.ReLU).state_dict()) == [
        "layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias",
    ]  # fmt: skip


def test_the_activation_is_made_once_per_layer_after_the_layers() -> None:
    made: list[nn.Module] = []

    def activation() -> nn.Module:
        made.append(nn.Tanh())
        return made[-1]

    assert list(MLP((3, 6, 6), activation).activations) == made
    ensemble = EnsembleMLP(3, (4, 6, 6), activation)
    assert [layer for layer in ensemble.layers if isinstance(layer, nn.Tanh)] == made[2:]


@stateful
@pytest.mark.parametrize("one_by_one", [False, True])
def test_members_share_no_weights_and_no_statistics(activation: Any, one_by_one: bool, monkeypatch: Any) -> None:
    """Training one member on other inputs leaves the others as separate networks are."""
    monkeypatch.setattr(mlp, "MIN_PRODUCT", 0)
    monkeypatch.setattr(mlp, "is_large", lambda *_: one_by_one)
    ensemble, x = EnsembleMLP(3, (4, 6, 6), activation), torch.randn(5, 4)
    expected = []
    for e in range(3):
        y = x
        for layer in copy.deepcopy(ensemble).layers:
            y = y @ layer.weight[e] + layer.bias[e, 0] if isinstance(layer, EnsembleLinear) else layer[e](y)
        expected.append(y.squeeze(-1))
    output = ensemble(x)
    torch.testing.assert_close(output, torch.stack(expected))
    norms = [module for module in ensemble.modules() if isinstance(module, nn.BatchNorm1d)]
    assert all(norm.num_batches_tracked in (None, 1) for norm in norms), "statistics move once per call"
    output[0].sum().backward()
    for layer in ensemble.layers:
        if isinstance(layer, PerMember):
            first, *others = [[p.grad for p in part.parameters()] for part in layer]
            assert all(gradient is not None for gradient in first)
            assert not any(gradient is not None and gradient.any() for rest in others for gradient in rest)


@pytest.mark.parametrize("make", [lambda a: MLP((3, 4), a), lambda a: EnsembleMLP(2, (3, 4), a)])
@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), torch.tanh, F.relu, "relu", None, nn.LazyBatchNorm1d, nn.Threshold, lambda: torch.tanh],
    ids=["instance", "C function", "function", "text", "None", "lazy", "two arguments", "makes no module"],
)
def test_what_makes_no_activation_is_an_error(make: Any, activation: Any) -> None:
    rule = "activation: must make a module, from no argument or from the number of a layer's features; got "
    hint = "Pass a class such as nn.ReLU or nn.LayerNorm, no instance, function or lazy module."
    with pytest.raises(ParamsError, match=rf"^(EnsembleMLP|MLP)\.{re.escape(rule)}.*{re.escape(hint)}$"):
        make(activation)


# Dropout


def dropped(dropout: Dropout, *shape: int) -> Tensor:
    return dropout(torch.ones(shape)) == 0


def test_units_are_dropped_and_the_others_scaled() -> None:
    # 1 / (1 - 0.25) = 4/3; of 200,000 units a quarter is dropped, give or take 5 standard deviations of 0.00097.
    torch.manual_seed(1)
    output = Dropout(0.25)(torch.ones(1000, 200))
    assert output.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (output == 0).float().mean().item() == pytest.approx(0.25, abs=0.005)


def test_masks_differ_between_calls_layers_shards_rows_and_columns() -> None:
    # Two masks of p = 0.5 agree in half of the units, as coins do.
    torch.manual_seed(1)
    one, other = Dropout(0.5), Dropout(0.5)
    of_shard = copy.deepcopy(one)
    of_shard.stream.fill_(1)
    first, *others = (dropped(each, 500, 400) for each in (one, one, other, of_shard))
    for a, b in (*((first, each) for each in others), (first[1:], first[:-1]), (first[:, 1:], first[:, :-1])):
        assert (a == b).float().mean().item() == pytest.approx(0.5, abs=0.006)
    for axis in (0, 1):  # no row or column is favoured: 500 coins have a deviation of 0.022
        assert (first.float().mean(axis) - 0.5).abs().max() < 0.12


def test_shards_share_compiled_code() -> None:
    counter, shards = CompileCounter(), [Dropout(0.5) for _ in range(3)]
    run = torch.compile(lambda dropout, x: dropout(x), backend=counter)
    for number, dropout in enumerate(shards):
        dropout.stream.fill_(number)
        run(dropout, torch.ones(2))
    assert counter.frame_count == 1
    assert dropout.state_dict().keys() == {"num_masks"}


def test_only_units_in_train_mode_are_dropped_and_without_torchs_random_numbers() -> None:
    dropout, x, state = Dropout(0.5), torch.ones(50, requires_grad=True), torch.get_rng_state()
    output = dropout(x)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert torch.equal(gradient, output.detach())  # 2 or 0
    assert torch.equal(torch.get_rng_state(), state)
    before = dropout.num_masks.clone()
    assert dropout.eval()(x) is x
    assert torch.equal(dropout.num_masks, before)


def test_a_loaded_state_continues_with_the_next_mask() -> None:
    one, other = Dropout(0.5), Dropout(0.5)
    dropped(one, 64)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for _ in range(3):
        assert torch.equal(dropped(one, 64), dropped(other, 64))
