"""REDQ: a random few of its critics make the target, all of them train the actor, and that not at each step."""

import dataclasses
from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.fakes import OBS_SPACE
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, FixedDistribution, batch
from tests.unit.collect.test_collector import BOX


def make(num_critics: int = 3, **params: int) -> Any:
    policy = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), num_critics=num_critics)
    return rl.REDQ(policy, rl.REDQParams(temperature=0.2, **params))


def test_target_and_actor_value() -> None:
    algorithm, data = make(), batch([1.0], [0.99])
    noise = algorithm.sample_noise(data)
    noise.members = torch.tensor([0, 2])
    q = torch.tensor([[4.0], [1.0], [3.0]])
    algorithm.target_critic = FixedCritic(q)
    algorithm.policy.distribution = lambda obs: FixedDistribution(-1.5)
    # 1 + 0.99 (min(4, 3) + 0.2 * 1.5); the critic that says 1 was not drawn.
    assert algorithm.critic_target(data, noise).tolist() == pytest.approx([4.267])
    algorithm.params = dataclasses.replace(algorithm.params, entropy_in_target=False)
    assert algorithm.critic_target(data, noise).tolist() == pytest.approx([3.97])  # 1 + 0.99 * 3, RLPD's other form
    assert algorithm.actor_value(q).tolist() == pytest.approx([8 / 3])
    algorithm.critic = FixedCritic(q)
    assert float(algorithm.critic_loss(data, torch.tensor([2.0]), noise)[0]) == 4.0 + 1.0 + 1.0  # a sum over critics


def test_members_are_drawn_anew_for_each_step_and_without_repetition() -> None:
    algorithm, data = make(num_critics=5), batch([1.0, 1.0], [0.9, 0.9])
    algorithm.seed(0)
    drawn = [tuple(sorted(algorithm.sample_noise(data).members.tolist())) for _ in range(100)]
    assert len(set(drawn)) == 10  # all pairs of five
    assert all(len(set(pair)) == 2 for pair in drawn)


def test_the_actor_is_trained_at_each_gth_step() -> None:
    algorithm, data = make(actor_update_interval=3), batch([1.0, 1.0], [0.9, 0.9])
    assert ["actor_loss" in algorithm.update(data).metrics for _ in range(6)] == [False, False, True] * 2
