"""Batch renormalisation by hand, and what its running statistics go through."""

from typing import Any

import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.nets.blocks import BatchRenorm, NormedEnsembleMLP, NormedMLP
from rltrainer.nets.module_state import check_module
from tests.fakes import OBS_SPACE
from tests.unit.collect.test_collector import BOX

JOINT = torch.tensor([[1.0], [3.0], [5.0], [7.0]])


def warm(num_passes: int = 100_000) -> BatchRenorm:
    norm = BatchRenorm(1)
    norm.num_passes.fill_(num_passes)
    return norm


def test_batch_and_running_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchRenorm, "EPS", 0.0)
    norm = BatchRenorm(1)
    # Mean 4, variance 5 of all; each half apart would be [-1, 1].
    assert norm(JOINT, True).flatten().tolist() == pytest.approx([-1.341641, -0.447214, 0.447214, 1.341641], abs=1e-6)
    # A hundredth of the way from 0 and 1; the unbiased variance would be 1.056667.
    assert (float(norm.running_mean), float(norm.running_var)) == pytest.approx((0.04, 1.04))
    assert norm.num_passes == 1
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    assert norm(torch.tensor([[0.04], [1.04]])).flatten().tolist() == pytest.approx([0.0, 1 / 1.04**0.5])
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())  # acting changes nothing


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        # r = 1, d = 2 / sqrt(1.001) = 1.999001: the batch is [-0.9995, 0.9995] without them.
        ([1.0, 3.0], [0.9995, 2.998501]),
        # Mean 200, standard deviation 100: r = 3, d = 5 at their limits.
        ([100.0, 300.0], [2.0, 8.0]),
    ],
)
def test_after_the_warm_up_the_result_is_near_what_acting_sees(x: list[float], expected: list[float]) -> None:
    batch = torch.tensor(x).unsqueeze(1)
    assert warm()(batch, True).flatten().tolist() == pytest.approx(expected, abs=1e-5)
    plain = warm(99_999)(batch, True).flatten().tolist()
    assert plain == pytest.approx([-1.0, 1.0], abs=1e-3)


def test_the_correction_has_no_gradient_and_the_statistics_of_the_batch_have_one() -> None:
    x = torch.tensor([[1.0], [3.0], [4.0]], requires_grad=True)
    for norm in (warm(), BatchRenorm(1)):
        gradients = torch.autograd.grad(norm(x, True).square().sum(), x)[0]
        # A shift of all rows changes nothing but the constant d.
        assert float(gradients.sum()) == pytest.approx(0.0, abs=1e-5)
        assert gradients.abs().max() > 1e-5


def test_a_batch_that_is_not_finite_leaves_the_running_statistics() -> None:
    norm = BatchRenorm(2)
    norm(torch.tensor([[1.0, 1.0], [float("inf"), 3.0]]), True)
    assert norm.running_mean.tolist() == pytest.approx([0.0, 0.02])
    assert norm.running_var.tolist() == pytest.approx([1.0, 1.0])


def test_layers_do_not_depend_on_the_scale_of_the_input() -> None:
    layers = NormedMLP((3, 8, 8), nn.ReLU)
    x = torch.randn(64, 3)
    torch.testing.assert_close(layers(100 * x, True), layers(100 * (x + 1), True), rtol=1e-4, atol=1e-4)
    assert layers(x).shape == (64, 8)


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("batch_stats", [False, True])
def test_members_are_separate_networks(one_by_one: bool, batch_stats: bool, monkeypatch: Any) -> None:
    from rltrainer.nets import mlp

    monkeypatch.setattr(mlp, "MIN_PRODUCT", 0)
    monkeypatch.setattr(mlp, "is_large", lambda *_: one_by_one)
    ensemble, x = NormedEnsembleMLP(3, (4, 6, 5), nn.ReLU, num_outputs=2), torch.randn(7, 4)
    for part in ensemble.modules():
        if isinstance(part, BatchRenorm):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.running_mean)
    expected = []
    for e in range(3):
        single, layers = NormedMLP((4, 6, 5), nn.ReLU), list(ensemble.layers)
        for own, theirs in zip(single.layers, layers, strict=False):
            for name, value in theirs.state_dict().items():
                member = value[e].squeeze(0) if value.dim() else value
                own.state_dict()[name].copy_(member.t() if isinstance(own, nn.Linear) and name == "weight" else member)
        output: Any = layers[-1]
        expected.append(single(x, batch_stats) @ output.weight[e] + output.bias[e])
    if not batch_stats:
        torch.testing.assert_close(ensemble(x, 2), torch.stack(expected[:2]))
    torch.testing.assert_close(ensemble(x, None, batch_stats), torch.stack(expected))


def test_the_flag_reaches_the_norms_of_actor_and_critic() -> None:
    net = rl.NetParams(norm="batch_renorm", hidden_sizes=(8,), dropout=0.1)
    policy = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, net)
    obs, action = torch.randn(5, 2), torch.zeros(5, 1)

    def passes(network: nn.Module) -> list[int]:
        return [int(part.num_passes) for part in network.modules() if isinstance(part, BatchRenorm)]

    policy.distribution(obs, True)
    assert (passes(policy.actor), passes(policy.critic)) == ([1, 1], [0, 0])
    policy.critic(obs, action, None, True)
    policy.critic(obs, action)
    policy.act(obs, explore=True)
    assert (passes(policy.actor), passes(policy.critic)) == ([1, 1], [1, 1])


def test_a_variance_below_0_is_refused() -> None:
    state = BatchRenorm(1).state_dict()
    with pytest.raises(CheckpointError, match="running_var: "):
        check_module("norm", BatchRenorm(1), {**state, "running_var": torch.tensor([-1.0])})
