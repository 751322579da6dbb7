"""TQC: the truncated mixture of quantiles, and the loss against it."""

from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.fakes import OBS_SPACE
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, FixedDistribution, batch
from tests.unit.collect.test_collector import BOX


def make(num_quantiles: int = 3, num_dropped: int = 1) -> Any:
    policy = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), num_outputs=num_quantiles)
    return rl.TQC(policy, rl.TQCParams(temperature=0.2, num_dropped=num_dropped))


def test_the_target_is_the_lower_part_of_all_quantiles() -> None:
    algorithm, data = make(), batch([1.0, 1.0], [0.9, 0.0])
    quantiles = torch.tensor([[1.0, 5.0, 3.0], [2.0, 4.0, 6.0]])  # [E, K], the same for both transitions
    algorithm.target_critic = FixedCritic(quantiles.unsqueeze(1).expand(2, 2, 3))
    algorithm.policy.distribution = lambda obs: FixedDistribution(-1.0)
    target = algorithm.critic_target(data, algorithm.sample_noise(data))
    assert target.shape == (4, 2)
    # Of 1 ... 6 the two highest are left out: 1 + 0.9 (z + 0.2), and the reward alone where the episode ended.
    assert target[:, 0].sort().values.tolist() == pytest.approx([2.08, 2.98, 3.88, 4.78])
    assert target[:, 1].tolist() == [1.0] * 4


def test_critic_loss_td_error_and_actor_value() -> None:
    algorithm, data = make(), batch([1.0, 1.0], [0.9, 0.9], weight=[1.0, 0.5])
    quantiles = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]).unsqueeze(1).expand(2, 2, 3)
    algorithm.critic = FixedCritic(quantiles)
    target = torch.tensor([2.08, 2.98, 3.88, 4.78]).unsqueeze(1).expand(4, 2)
    loss, td_error = algorithm.critic_loss(data, target, algorithm.sample_noise(data))
    # Midpoints 1/6, 1/2, 5/6. Sums over the targets: (0.58 + 1.48 + 2.38 + 3.28) / 6 = 1.286667 of the first quantile,
    # (0.0032 + 0.4802 + 1.38 + 2.28) / 2 = 2.0717 of the second,
    # (0.4232 + 0.0002) / 6 + (0.3872 + 1.28) * 5 / 6 = 1.4599 of the third. The mean over
    # 12 pairs is 0.401522, and the second transition weighs half.
    assert float(loss) == pytest.approx(0.75 * 0.401522, abs=1e-6)
    assert td_error.tolist() == pytest.approx([1.43, 1.43])  # 3.43 - 2
    assert algorithm.actor_value(quantiles).tolist() == [2.0, 2.0]


def test_nothing_dropped_is_all_of_them() -> None:
    algorithm = make(num_quantiles=4, num_dropped=0)
    assert algorithm.target_value(torch.rand(2, 5, 4), None).shape == (8, 5)
