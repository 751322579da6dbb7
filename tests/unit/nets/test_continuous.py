"""Policies of off-policy continuous control: scaling, and what each actor does."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltrainer.nets import DeterministicActorCritic, GaussianActorCritic, SquashedActorCritic
from rltrainer.nets.continuous import ContinuousActorCritic

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
CLASSES = [DeterministicActorCritic, SquashedActorCritic, GaussianActorCritic]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_scale_by_hand() -> None:
    policy = DeterministicActorCritic(OBS, BOX, hidden_sizes=(4,))
    unit = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, 0.5]])
    env = torch.tensor([[-1.0, 0.0], [0.0, 5.0], [1.0, 10.0], [0.5, 7.5]])
    torch.testing.assert_close(policy.scale(unit), env)
    torch.testing.assert_close(policy.scale(unit.double()), env)
    torch.testing.assert_close(policy.unscale(env), unit)


@pytest.mark.parametrize("cls", CLASSES)
def test_critics_have_as_many_members_as_asked(cls: type[ContinuousActorCritic]) -> None:
    policy = cls(OBS, BOX, hidden_sizes=(4,), num_critics=5)
    assert policy.critic(torch.zeros(7, 3), torch.zeros(7, 2)).shape == (5, 7)


@pytest.mark.parametrize("cls", CLASSES)
def test_actor_and_critic_share_nothing(cls: type[ContinuousActorCritic]) -> None:
    image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    policy = cls(image, BOX, hidden_sizes=(4,))
    assert not set(policy.actor.parameters()) & set(policy.critic.parameters())


@pytest.mark.parametrize("cls", CLASSES)
def test_greedy_action_is_the_mode_in_the_envs_scale(cls: type[ContinuousActorCritic]) -> None:
    policy = cls(OBS, BOX, hidden_sizes=(4,))
    obs = torch.randn(6, 3)
    unit = policy.actor(obs) if cls is DeterministicActorCritic else policy.actor(obs).mode()
    assert unit.abs().max() <= 1
    assert torch.equal(policy.act(obs), policy.scale(unit).detach())


def test_deterministic_actor_explores_only_as_it_is_told() -> None:
    policy = DeterministicActorCritic(OBS, BOX, hidden_sizes=(4,))
    obs = torch.randn(6, 3)
    assert torch.equal(policy.act(obs, explore=True), policy.act(obs))


def test_squashed_actor_samples_its_distribution() -> None:
    policy = SquashedActorCritic(OBS, BOX, hidden_sizes=(4,))
    obs = torch.randn(6, 3)
    expected = policy.scale(policy.distribution(obs).sample(generator())).detach()
    assert torch.equal(policy.act(obs, explore=True, generator=generator()), expected)


def test_gaussian_actor_clips_its_samples_to_the_bounds() -> None:
    policy = GaussianActorCritic(OBS, BOX, hidden_sizes=(4,))
    torch.nn.init.constant_(policy.actor[2].log_std, math.log(5.0))
    action = policy.act(torch.randn(200, 3), explore=True, generator=generator())
    assert action.amin(0).tolist() == [-1.0, 0.0]
    assert action.amax(0).tolist() == [1.0, 10.0]


def test_gaussian_actor_critic_has_a_value_network_of_its_own() -> None:
    policy = GaussianActorCritic(OBS, BOX, hidden_sizes=(4, 6), activation=torch.nn.Tanh)
    assert policy.value(torch.randn(5, 3)).shape == (5,)
    assert [layer.out_features for layer in policy.value_network[1].layers] == [4, 6]
    assert all(isinstance(activation, torch.nn.Tanh) for activation in policy.value_network[1].activations)
    assert policy.value_network[2].in_features == 6
    policy.value(torch.randn(5, 3)).sum().backward()
    untouched = [*policy.actor.parameters(), *policy.critic.parameters()]
    assert all(parameter.grad is None for parameter in untouched)
