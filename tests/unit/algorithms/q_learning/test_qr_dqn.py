"""QR-DQN's loss by hand."""

from typing import Any

import pytest
import torch
from gymnasium import spaces

import rltrainer as rl
from tests.unit.algorithms.q_learning.test_dqn import OBS, transitions
from tests.unit.nets.test_q_network import with_outputs


def algorithm(online: list[list[float]], target: list[list[float]], **params: Any) -> rl.QRDQN:
    policy = rl.QuantileQNetwork(OBS, spaces.Discrete(2), hidden_sizes=(), num_quantiles=2)
    qr_dqn = rl.QRDQN(with_outputs(policy, target), rl.QRDQNParams(**params))
    with_outputs(policy, online)
    return qr_dqn


def test_loss_by_hand() -> None:
    qr_dqn = algorithm([[0.0, 1.0], [5.0, 9.0]], [[-1.0, 2.0], [-9.0, -9.0]])
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
    qr_dqn = algorithm([[0.0, 1.0], [5.0, 9.0]], [[-1.0, 2.0], [-9.0, -9.0]], huber_delta=2.0)
    loss, _ = qr_dqn.loss(transitions(action=torch.tensor([0, 1]), reward=torch.tensor([1.0, 6.0])), None)
    # Errors of the second are 1 and -3, whose Huber losses .5 and 2 * (3 - 1) weigh .25 and |.75 - 1|, over kappa.
    assert loss[1].item() == pytest.approx((0.125 + 1.0) / 2)


def test_a_double_one_takes_the_target_networks_quantiles_of_the_online_networks_choice() -> None:
    batch = transitions(reward=torch.zeros(2), discount=torch.ones(2))
    outputs = [[0.0, 1.0], [5.0, 9.0]], [[-1.0, 2.0], [-9.0, -9.0]]
    assert algorithm(*outputs).target(batch)[0].tolist() == [-1.0, 2.0]
    assert algorithm(*outputs, double=True).target(batch)[0].tolist() == [-9.0, -9.0]
