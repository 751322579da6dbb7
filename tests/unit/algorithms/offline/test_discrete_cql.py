"""Discrete CQL's penalty by hand."""

import pytest
import torch
from gymnasium import spaces

import rltrainer as rl
from tests.unit.algorithms.q_learning.test_dqn import transitions
from tests.unit.nets.test_q_network import OBS


def algorithm(**params: float) -> rl.DiscreteCQL:
    """Return one whose values are 1, 2, 0 for the observation 1."""
    policy = rl.QNetwork(OBS, spaces.Discrete(3), hidden_sizes=())
    with torch.no_grad():
        policy.critic[2].weight.copy_(torch.tensor([[1.0], [2.0], [0.0]]))
        policy.critic[2].bias.zero_()
    return rl.DiscreteCQL(policy, rl.DiscreteCQLParams(**params))


def test_loss_and_gradient_by_hand() -> None:
    cql = algorithm()
    batch = transitions(
        obs=torch.tensor([[1.0]]), action=torch.tensor([1]), reward=torch.tensor([2.0]), discount=torch.tensor([0.0]),
        next_obs=torch.tensor([[1.0]]), weight=torch.ones(1),
    )  # fmt: skip
    # The target is Q(1, 1) = 2 itself, so only the penalty is left: log(e + e^2 + 1) - 2.
    loss, td_error = cql.loss(batch, None)
    assert td_error.tolist() == [0.0]
    assert loss.item() == pytest.approx(0.407606, abs=1e-6)
    # By the values: softmax(1, 2, 0) - (0, 1, 0).
    loss.sum().backward()
    assert cql.policy.critic[2].bias.grad.tolist() == pytest.approx([0.244728, -0.334759, 0.090031], abs=1e-6)


def test_conservative_coef_weighs_the_penalty_against_dqns_loss() -> None:
    batch = transitions(
        obs=torch.tensor([[1.0]]), action=torch.tensor([1]), reward=torch.tensor([3.0]), discount=torch.tensor([0.0]),
        next_obs=torch.tensor([[1.0]]), weight=torch.ones(1),
    )  # fmt: skip
    # An error of 1 is a Huber loss of .5.
    assert algorithm(conservative_coef=2.0).loss(batch, None)[0].item() == pytest.approx(0.5 + 2 * 0.407606, abs=1e-6)
    squared = algorithm(conservative_coef=2.0, huber_delta=None)
    assert squared.loss(batch, None)[0].item() == pytest.approx(1 + 2 * 0.407606, abs=1e-6)


def test_it_is_double_unless_told_otherwise() -> None:
    assert algorithm().params.double
    assert not rl.DiscreteCQLParams(double=False).double
