"""Categorical critics: targets, losses and the batch of both observations."""

import dataclasses
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.algorithms.actor_critic.categorical_sac import CategoricalSAC, CategoricalSACParams
from rltrainer.nets.normalizer import RewardScaler
from tests.fakes import OBS_SPACE
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, FixedDistribution, batch
from tests.unit.collect.test_collector import BOX

# Of the atoms -1, 0, 1, with means .2 and -.1.
PROBABILITY = torch.tensor([[0.2, 0.4, 0.4], [0.3, 0.5, 0.2]])


def make(cls: Any = CategoricalSAC, **params: Any) -> Any:
    policy = rl.CategoricalActorCritic.for_spaces(
        OBS_SPACE, BOX, hidden_sizes=(8,), num_atoms=3, v_min=-1.0, v_max=1.0
    )  # fmt: skip
    algorithm = cls(policy, CategoricalSACParams(temperature=0.2, **params))
    algorithm.target_critic = FixedCritic(PROBABILITY.log().unsqueeze(1).expand(2, 2, 3))
    algorithm.policy.distribution = lambda obs: FixedDistribution(-1.0)
    return algorithm


def test_the_target_is_the_distribution_of_the_lower_mean_with_the_entropy() -> None:
    algorithm, data = make(), batch([0.5, 0.5], [0.9, 0.0])
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 2.0]]).unsqueeze(1).repeat(1, 2, 1).requires_grad_()
    algorithm.critic = FixedCritic(logits)
    noise = algorithm.sample_noise(data)
    target = algorithm.target(data, algorithm.target_critic(None, None), torch.full((2,), -1.0), noise)
    # The atoms -.22, .68 and 1.58, which is clipped to 1, have .3, .5 and .2; where the episode ended all are at .5.
    assert target.tolist() == [pytest.approx([0.066, 0.394, 0.54]), pytest.approx([0.0, 0.5, 0.5])]
    loss, error = algorithm.critic_step(data, noise)
    # log 3 for equal logits, and 2.407606 - (.394 + 2 * .54) and 2.407606 - 1.5 for the others.
    assert float(loss.detach()) == pytest.approx(1.098612 + (0.933606 + 0.907606) / 2, abs=1e-6)
    assert error.tolist() == pytest.approx([(1.098612 + 0.933606) / 2, (1.098612 + 0.907606) / 2], abs=1e-6)
    assert torch.autograd.grad(loss, logits)[0][0, 0].tolist() == pytest.approx(
        [(1 / 3 - 0.066) / 2, (1 / 3 - 0.394) / 2, (1 / 3 - 0.54) / 2], abs=1e-6
    )  # fmt: skip
    algorithm.params = dataclasses.replace(algorithm.params, entropy_in_target=False)
    target = algorithm.target(data, algorithm.target_critic(None, None), torch.full((2,), -1.0), noise)
    assert target[0].tolist() == pytest.approx([0.12, 0.43, 0.45])


def test_the_actor_climbs_the_lower_mean() -> None:
    algorithm = make()
    assert algorithm.actor_value(PROBABILITY.log().unsqueeze(1)).tolist() == pytest.approx([-0.1])
    assert (algorithm.target_entropy, make(target_entropy=-3.0).target_entropy) == (-0.5, -3.0)


def test_both_networks_see_both_observations_in_one_batch() -> None:
    class Joint(CategoricalSAC):
        uses_batch_stats = True

    algorithm, data = make(Joint), batch([0.5, 0.5], [0.9, 0.0])
    logits = torch.zeros(2, 4, 3)  # of [s; s'], of two critics
    logits[:, 2:] = PROBABILITY.log().unsqueeze(1)
    algorithm.critic, algorithm.target_critic = FixedCritic(logits), FixedCritic(logits)
    loss, error = algorithm.critic_step(data, algorithm.sample_noise(data))
    assert float(loss) == pytest.approx(2 * 1.098612)
    assert error.tolist() == pytest.approx([1.098612] * 2)
    for obs, action, batch_stats in algorithm.critic.asked + algorithm.target_critic.asked:
        assert (obs.shape, action.shape, batch_stats) == ((4, 2), (4, 1), True)


def test_the_standard_deviation_has_smooth_limits() -> None:
    policy = rl.CategoricalActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(), smooth_log_std=True)
    found, bias = list[float](), cast(Tensor, policy.actor[2].linear.bias)
    for raw in (0.0, 1.0, -1.0):
        torch.nn.init.constant_(bias, raw)
        found.append(float(policy.distribution(torch.zeros(1, 2)).log_std.detach()))
    assert found == pytest.approx([-4.0, 0.569565, -8.569565], abs=1e-6)


def test_rewards_are_scaled_so_that_returns_lie_within_the_atoms() -> None:
    limits: dict[bool, float | None] = {True: 7.0, False: None}
    for limit_returns, expected in limits.items():
        options: Any = {"normalize_reward": True, "limit_returns": limit_returns, "v_min": -7.0}
        policy = rl.CategoricalActorCritic.for_spaces(OBS_SPACE, BOX, **options)
        assert cast(RewardScaler, policy.reward_normalizer).limit == expected


def test_the_networks_of_xqc_are_as_large_as_the_papers() -> None:
    obs_space, action_space = (gym.spaces.Box(-1.0, 1.0, (n,), np.float32) for n in (17, 6))  # HalfCheetah
    policy = rl.CategoricalActorCritic.for_spaces(obs_space, action_space, **rl.XQC.policy_options)
    one = 23 + 23 * 512 + 3 * 512**2 + 4 * 2 * 512 + 512 * 101 + 101  # norms have two numbers for each unit
    assert sum(p.numel() for p in policy.critic.parameters()) == 2 * one
    assert sum(p.numel() for p in policy.parameters()) == pytest.approx(2e6, rel=0.05)
