"""Batch norms, rows of unit length and blocks by hand, and what holds for all networks of them."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.nets import blocks, mlp
from rltrainer.nets.blocks import (
    BatchNorm,
    LerpBlock,
    ResidualBlock,
    Unit,
    UnitBatchNorm,
    UnitLinear,
    UnitRMSNorm,
    has_batch_norm,
    has_unit_rows,
    make_output,
)
from rltrainer.nets.linear import Chain
from rltrainer.nets.mlp import EnsembleLinear
from rltrainer.nets.module_state import check_module
from tests.fakes import OBS_SPACE
from tests.unit.collect.test_collector import BOX

JOINT = torch.tensor([[1.0], [3.0], [5.0], [7.0]])


def warm(num_passes: int = 100_000) -> BatchNorm:
    norm = BatchNorm(1, renorm_after=100_000)
    norm.num_passes.fill_(num_passes)
    return norm


def test_batch_and_running_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchNorm, "EPS", 0.0)
    norm = BatchNorm(1)
    # Mean 4, variance 5 of all; each half apart would be [-1, 1].
    assert norm(JOINT, True).flatten().tolist() == pytest.approx([-1.341641, -0.447214, 0.447214, 1.341641], abs=1e-6)
    # A hundredth of the way from 0 and 1; the unbiased variance would be 1.056667.
    assert (float(norm.running_mean), float(norm.running_var)) == pytest.approx((0.04, 1.04))
    assert norm.num_passes == 1
    assert norm(torch.tensor([[0.04], [1.04]])).flatten().tolist() == pytest.approx([0.0, 1 / 1.04**0.5])


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
    for norm in (warm(), BatchNorm(1)):
        gradients = torch.autograd.grad(norm(x, True).square().sum(), x)[0]
        # A shift of all rows changes nothing but the constant d.
        assert float(gradients.sum()) == pytest.approx(0.0, abs=1e-5)
        assert gradients.abs().max() > 1e-5


def test_a_batch_that_is_not_finite_leaves_the_running_statistics() -> None:
    norm = BatchNorm(2)
    norm(torch.tensor([[1.0, 1.0], [float("inf"), 3.0]]), True)
    assert norm.running_mean.tolist() == pytest.approx([0.0, 0.02])
    assert norm.running_var.tolist() == pytest.approx([1.0, 1.0])


def test_an_unbiased_variance_and_the_joint_length_of_weight_and_bias() -> None:
    norm = UnitBatchNorm(2)
    norm(JOINT.expand(4, 2), True)
    assert (norm.running_var.tolist(), norm.EPS) == ([pytest.approx(1.056667, abs=1e-6)] * 2, 1e-5)
    norm.load_state_dict({**norm.state_dict(), "weight": torch.tensor([3.0, 0.0]), "bias": torch.tensor([0.0, 4.0])})
    norm.project_()  # by sqrt(2) / 5
    assert norm.weight.tolist() == pytest.approx([0.848528, 0.0])
    assert norm.bias.tolist() == pytest.approx([0.0, 1.131371])


def test_a_residual_block_and_the_norm_behind_it() -> None:
    norm = UnitRMSNorm(2)
    # The mean of 9 and 16 is 12.5.
    assert norm(torch.tensor([[3.0, 4.0]]))[0].tolist() == pytest.approx([0.848528, 1.131371])
    norm.load_state_dict({"weight": torch.tensor([3.0, 4.0])})
    norm.project_()  # by sqrt(2) / 5
    assert norm.weight.tolist() == pytest.approx([0.848528, 1.131371])
    block = ResidualBlock(1, nn.ReLU, None, expansion=1)
    block.load_state_dict(
        {**block.state_dict(), "layers.0.weight": torch.ones(1, 1), "layers.3.weight": -torch.ones(1, 1)}
    )
    # Standardised [-1, 1], then 0 where that is negative, and the same again of [0, -1].
    assert block(torch.tensor([[1.0], [3.0]]), True).flatten().tolist() == pytest.approx([2.0, 3.0], abs=1e-4)


def test_rows_of_unit_length() -> None:
    layer = UnitLinear(2, 2)
    layer.load_state_dict({"weight": torch.tensor([[3.0, 4.0], [0.0, 2.0]])})
    layer.project_()
    assert layer.weight.tolist() == [pytest.approx([0.6, 0.8]), [0.0, 1.0]]
    # More rows than columns cannot be orthogonal to each other, and are scaled all the same.
    lengths = torch.linalg.vector_norm(UnitLinear(3, 8, num_members=2, bias=True).weight, dim=-1)
    torch.testing.assert_close(lengths, torch.ones(2, 8))


def test_the_parts_of_lerp_blocks() -> None:
    assert Unit(3.0)(torch.tensor([[3.0, 4.0]]))[0].tolist() == pytest.approx([0.514496, 0.685994, 0.514496])
    assert Unit()(torch.tensor([[3.0, 4.0]]))[0].tolist() == pytest.approx([0.6, 0.8])
    rate = LerpBlock(512, 2, nn.ReLU, None).rate
    assert float(rate(torch.ones(512))[0].detach()) == pytest.approx(1 / 3)
    with torch.no_grad():
        rate.weight += 0.001
    assert float(rate(torch.ones(512))[0].detach()) == pytest.approx(0.340876, abs=1e-6)
    block = LerpBlock(2, 1, nn.ReLU, None, expansion=1)  # half of the way from [1, 0] to [0, 1]
    block.load_state_dict({**block.state_dict(), "widen.weight": torch.eye(2), "narrow.weight": torch.eye(2).flip(0)})
    assert block(torch.tensor([[1.0, 0.0]]))[0].tolist() == pytest.approx([0.707107, 0.707107], abs=1e-5)
    assert block(torch.tensor([[-1.0, 0.0]])).isfinite().all()  # where the activation is 0


NORMS = ("batch_renorm", "unit_batch_renorm", "batch", "unit_batch", "unit_lerp", "unit_residual")
each_norm: Any = pytest.mark.parametrize("norm", NORMS)
LINEAR = nn.Linear | EnsembleLinear | UnitLinear
OBS = torch.linspace(-1, 1, 32).view(16, 2) ** 3


def as_after_steps(module: Any) -> Any:
    """Return a module with batch norms whose weights and means differ from those at the start."""
    for part in module.modules():
        if isinstance(part, BatchNorm):
            nn.init.normal_(part.weight)
            nn.init.normal_(part.running_mean)
    return module


def policy_of(norm: Any) -> Any:
    """Return a policy of small networks with this norm, as after some steps."""
    rl.seed(0)
    net = rl.NetParams(norm=norm, hidden_sizes=(8, 8))
    return as_after_steps(rl.CategoricalActorCritic.for_spaces(OBS_SPACE, BOX, net, num_atoms=5))


def outputs(policy: Any, batch_stats: bool) -> list[torch.Tensor]:
    """Return means and logarithms of deviations [B, A] of the actor, and logits [E, B, K] of the critics."""
    normal = policy.distribution(OBS, batch_stats)
    return [normal.mean, normal.log_std, policy.critic(OBS, OBS[:, :1], None, batch_stats)]


@each_norm
def test_acting_changes_no_statistics(norm: Any) -> None:
    policy = policy_of(norm)
    before = copy.deepcopy(dict(policy.named_buffers()))
    outputs(policy, False)
    policy.act(OBS, explore=True)
    assert all(torch.equal(before[name], value) for name, value in policy.named_buffers())
    outputs(policy, True)
    assert has_batch_norm(policy) != all(torch.equal(before[name], value) for name, value in policy.named_buffers())


@each_norm
@pytest.mark.parametrize("batch_stats", [False, True])
def test_lengths_that_are_forgotten(norm: Any, batch_stats: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the length of unit rows counts, nor, with statistics of the batch, the scale of a layer before a norm."""
    for norm_class in (BatchNorm, UnitBatchNorm):
        monkeypatch.setattr(norm_class, "EPS", 1e-10)  # not 0, for units that are 0 in all rows
    policy = policy_of(norm)
    expected = outputs(policy, batch_stats)
    rows = [part for part in policy.modules() if isinstance(part, UnitLinear)]
    assert bool(rows) == has_unit_rows(norm)
    with torch.no_grad():
        for part in rows:
            part.weight *= 3.0
            part.project_()
        torch.testing.assert_close(outputs(policy, batch_stats), expected, rtol=1e-5, atol=1e-5)
        if batch_stats:
            layers = [*policy.actor[1].layers, *policy.critic.ensemble.layers[:-1]]
            if norm == "unit_residual":  # in front of blocks there is no norm of a batch
                layers = [part for block in layers if isinstance(block, ResidualBlock) for part in block.layers]
            for part in layers:
                if isinstance(part, LINEAR):
                    for parameter in part.parameters():
                        parameter *= 3.0
            torch.testing.assert_close(outputs(policy, batch_stats), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("batch_stats", [False, True])
@each_norm
def test_members_are_separate_networks(norm: Any, one_by_one: bool, batch_stats: bool, monkeypatch: Any) -> None:
    for module in (mlp, blocks):
        monkeypatch.setattr(module, "is_large", lambda *_: one_by_one)
    monkeypatch.setattr(mlp, "MIN_PRODUCT", 0)
    net, x = rl.NetParams(norm=norm, hidden_sizes=(6, 6), activation=nn.ReLU), torch.randn(7, 4)
    ensemble = as_after_steps(net.ensemble(3, 4, num_outputs=2))
    expected = []
    for e in range(3):
        single = Chain(*net.hidden_layers(4).layers, make_output(norm, 6, 2))
        for own, theirs in zip(single.modules(), ensemble.layers.modules(), strict=True):
            for name, value in [*theirs.named_parameters(recurse=False), *theirs.named_buffers(recurse=False)]:
                member = value[e].squeeze(0) if value.dim() else value
                member = member.t() if isinstance(theirs, EnsembleLinear) and name == "weight" else member
                own.state_dict()[name].copy_(member)
        expected.append(single(x, batch_stats))
    if not batch_stats:
        torch.testing.assert_close(ensemble(x, 2), torch.stack(expected[:2]))
    torch.testing.assert_close(ensemble(x, None, batch_stats), torch.stack(expected))


def test_a_variance_below_0_is_refused() -> None:
    state = BatchNorm(1).state_dict()
    with pytest.raises(CheckpointError, match="running_var: "):
        check_module("norm", BatchNorm(1), {**state, "running_var": torch.tensor([-1.0])})
