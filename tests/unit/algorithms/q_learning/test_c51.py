"""C51's loss by hand."""

from typing import Any

import pytest
import torch
from gymnasium import spaces

import rltrainer as rl
from tests.unit.algorithms.q_learning.test_dqn import OBS, transitions
from tests.unit.nets.test_q_network import with_outputs

# Odds .1 : .2 : .4 : .2 : .1 of the returns -2 to 2 after an action, and others of a lower mean.
LOGITS = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1]).log().tolist()
LOWER = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1]).log().tolist()


def algorithm(online: list[list[float]], target: list[list[float]], **params: bool) -> rl.C51:
    policy = rl.CategoricalQNetwork(OBS, spaces.Discrete(2), hidden_sizes=(), num_atoms=5, v_min=-2.0, v_max=2.0)
    c51 = rl.C51(with_outputs(policy, target), rl.C51Params(**params))
    with_outputs(policy, online)
    return c51


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        # The target is [.03, .15, .32, .32, .18]. Against the uniform distribution, the cross-entropy is ln 5.
        ([0.0, 0.0, 0.0, 0.0, 0.0], 1.609438),
        # log(4 + e) - .32 with 1 in the middle
        ([0.0, 0.0, 1.0, 0.0, 0.0], 1.584832),
    ],
)
def test_loss_by_hand(logits: list[float], expected: float) -> None:
    c51 = algorithm([logits, LOWER], [LOGITS, LOWER])
    batch = transitions(action=torch.tensor([0, 0]), reward=torch.tensor([0.5, 1.0]), discount=torch.tensor([0.9, 0.0]))
    assert c51.target(batch)[0].tolist() == pytest.approx([0.03, 0.15, 0.32, 0.32, 0.18], abs=1e-6)
    assert c51.target(batch)[1].tolist() == pytest.approx([0.0, 0.0, 0.0, 1.0, 0.0])  # the end: the reward alone
    loss, td_error = c51.loss(batch, None)
    assert loss[0].item() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(loss, td_error)


def test_a_double_one_takes_the_target_networks_distribution_of_the_online_networks_choice() -> None:
    batch = transitions(reward=torch.zeros(2), discount=torch.ones(2))
    single, double = (algorithm([LOWER, LOGITS], [LOGITS, LOWER], double=flag) for flag in (False, True))
    assert single.target(batch)[0].tolist() == pytest.approx([0.1, 0.2, 0.4, 0.2, 0.1], abs=1e-6)
    assert double.target(batch)[0].tolist() == pytest.approx([0.6, 0.1, 0.1, 0.1, 0.1], abs=1e-6)


def test_dqn_on_distributions_trains_their_means() -> None:
    c51 = algorithm([LOGITS, LOWER], [LOGITS, LOWER])
    # Means 0 and -1: targets 1 + .5 * 0 and 3, Q(., 0) = 0 and Q(., 1) = -1.
    td_error = rl.DQN(c51.policy).loss(transitions(), None)[1]
    assert td_error.tolist() == pytest.approx([1.0, 4.0], abs=1e-6)


def test_defaults_are_the_papers() -> None:
    params = rl.C51Params()
    assert (params.lr, params.adam_eps, params.double) == (2.5e-4, 0.01 / 32, False)
    support = rl.CategoricalQNetwork(OBS, spaces.Discrete(2)).support
    assert support.tolist()[::25] == pytest.approx([-10.0, 0.0, 10.0], abs=1e-6)


# QR-DQN


def qr_algorithm(online: list[list[float]], target: list[list[float]], **params: Any) -> rl.QRDQN:
    policy = rl.QuantileQNetwork(OBS, spaces.Discrete(2), hidden_sizes=(), num_quantiles=2)
    qr_dqn = rl.QRDQN(with_outputs(policy, target), rl.QRDQNParams(**params))
    with_outputs(policy, online)
    return qr_dqn


def test_quantile_loss_by_hand() -> None:
    qr_dqn = qr_algorithm([[0.0, 1.0], [5.0, 9.0]], [[-1.0, 2.0], [-9.0, -9.0]])
    batch = transitions(action=torch.tensor([0, 1]), reward=torch.tensor([1.0, 6.0]))
    # Targets 1 + .5 * (-1, 2) and, at the end, 6 twice.
    assert qr_dqn.target(batch).tolist() == [[0.5, 2.0], [6.0, 6.0]]
    loss, td_error = qr_dqn.loss(batch, None)
    # The first is worked out in the test of quantile_huber. Errors of the second are 1 and -3, whose Huber losses .5
    # and 2.5 weigh .25 and |.75 - 1|: .125 + .625.
    assert loss.tolist() == pytest.approx([0.40625, 0.75])
    # Mean distances from .5: of .5 and 2; and from 7: of 6 and 6.
    assert td_error.tolist() == [0.75, 1.0]


def test_huber_delta_is_kappa() -> None:
    qr_dqn = qr_algorithm([[0.0, 1.0], [5.0, 9.0]], [[-1.0, 2.0], [-9.0, -9.0]], huber_delta=2.0)
    loss, _ = qr_dqn.loss(transitions(action=torch.tensor([0, 1]), reward=torch.tensor([1.0, 6.0])), None)
    # Errors of the second are 1 and -3, whose Huber losses .5 and 2 * (3 - 1) weigh .25 and |.75 - 1|, over kappa.
    assert loss[1].item() == pytest.approx((0.125 + 1.0) / 2)


def test_a_double_one_takes_the_target_networks_quantiles_of_the_online_networks_choice() -> None:
    batch = transitions(reward=torch.zeros(2), discount=torch.ones(2))
    outputs = [[0.0, 1.0], [5.0, 9.0]], [[-1.0, 2.0], [-9.0, -9.0]]
    assert qr_algorithm(*outputs).target(batch)[0].tolist() == [-1.0, 2.0]
    assert qr_algorithm(*outputs, double=True).target(batch)[0].tolist() == [-9.0, -9.0]
