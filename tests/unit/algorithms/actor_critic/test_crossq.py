"""CrossQ: targets from the critics' own pass over both observations of a transition."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.nets.blocks import BatchNorm
from tests.fakes import OBS_SPACE
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, FixedDistribution, batch
from tests.unit.collect.test_collector import BOX


def make(**params: Any) -> Any:
    net = rl.NetParams(norm="batch_renorm", hidden_sizes=(8,))
    return rl.CrossQ(rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, net), rl.CrossQParams(**params))


def test_one_pass_gives_values_and_targets() -> None:
    algorithm, data = make(temperature=0.2), batch([1.0, 1.0], [0.9, 0.0])
    q = torch.tensor([[1.0, 2.0, 4.0, 5.0], [0.0, 3.0, 3.0, 6.0]], requires_grad=True)  # of [s; s'], two critics
    algorithm.critic = FixedCritic(q)
    algorithm.policy.distribution = lambda obs: FixedDistribution(-1.0)
    loss, td_error = algorithm.critic_step(data, algorithm.sample_noise(data))
    # Targets: 1 + 0.9 (min(4, 3) + 0.2) = 3.88, and 1 where the episode ended. Errors [[2.88, -1], [3.88, -2]]; half
    # their squares: (8.2944 + 1) / 4 + (15.0544 + 4) / 4.
    assert float(loss.detach()) == pytest.approx(7.0872)
    assert td_error.tolist() == pytest.approx([3.38, 1.5])
    ((obs, action, batch_stats),) = algorithm.critic.asked
    assert (obs.shape, action.shape, batch_stats) == ((4, 2), (4, 1), True)
    gradient = torch.autograd.grad(loss, q)[0]
    assert gradient[:, 2:].tolist() == [[0.0, 0.0], [0.0, 0.0]]  # the target has no gradient
    assert gradient[:, :2].tolist() == [pytest.approx([-1.44, 0.5]), pytest.approx([-1.94, 1.0])]
    algorithm.params = dataclasses.replace(algorithm.params, entropy_in_target=False)
    # Targets 1 + 0.9 * 3 = 3.7 and 1: (7.29 + 1) / 4 + (13.69 + 4) / 4.
    assert float(algorithm.critic_step(data, algorithm.sample_noise(data))[0].detach()) == pytest.approx(6.495)


def test_actor_and_critics_count_their_own_passes() -> None:
    algorithm, data = make(), batch([1.0, 1.0], [0.9, 0.9])
    metrics = [algorithm.update(data).metrics for _ in range(6)]
    assert ["actor_loss" in each for each in metrics] == [False, False, True] * 2  # every third step

    def passes(network: nn.Module) -> set[int]:
        return {int(part.num_passes) for part in network.modules() if isinstance(part, BatchNorm)}

    assert (passes(algorithm.policy.actor), passes(algorithm.policy.critic)) == ({2}, {6})
    assert not hasattr(algorithm, "target_critic")
    assert float(algorithm.temperature()) < 1.0  # where it started
