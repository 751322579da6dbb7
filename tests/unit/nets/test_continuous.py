"""Policies of off-policy continuous control: scaling, what each actor does, and the ensemble of critics."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rltrainer.nets import DeterministicActorCritic, GaussianActorCritic, SquashedActorCritic
from rltrainer.nets.actor_critic import Critic
from rltrainer.nets.net_params import NetParams

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
every_policy = pytest.mark.parametrize("cls", [DeterministicActorCritic, SquashedActorCritic, GaussianActorCritic])


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_scale_by_hand() -> None:
    policy = DeterministicActorCritic(OBS, BOX, hidden_sizes=(4,))
    unit = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0], [0.5, 0.5]])
    env = torch.tensor([[-1.0, 0.0], [0.0, 5.0], [1.0, 10.0], [0.5, 7.5]])
    torch.testing.assert_close(policy.scale(unit), env)
    torch.testing.assert_close(policy.scale(unit.double()), env)
    torch.testing.assert_close(policy.unscale(env), unit)


@every_policy
def test_critics_have_as_many_members_as_asked_and_share_nothing_with_the_actor(cls: Any) -> None:
    policy = cls(spaces.Box(0, 255, (36, 36, 1), np.uint8), BOX, hidden_sizes=(4,), num_critics=5)
    assert policy.critic(torch.zeros(7, 36, 36, 1, dtype=torch.uint8), torch.zeros(7, 2)).shape == (5, 7)
    assert not set(policy.actor.parameters()) & set(policy.critic.parameters())


@every_policy
def test_greedy_action_is_the_mode_in_the_envs_scale(cls: Any) -> None:
    policy = cls(OBS, BOX, hidden_sizes=(4,))
    obs = torch.randn(6, 3)
    unit = policy.actor(obs) if cls is DeterministicActorCritic else policy.actor(obs).mode()
    assert unit.abs().max() <= 1
    assert torch.equal(policy.act(obs), policy.scale(unit).detach())
    if cls is DeterministicActorCritic:
        assert torch.equal(policy.act(obs, explore=True), policy.act(obs)), "its exploration is another object's"


def test_squashed_actor_samples_its_distribution() -> None:
    policy, obs = SquashedActorCritic(OBS, BOX, hidden_sizes=(4,)), torch.randn(6, 3)
    expected = policy.scale(policy.distribution(obs).sample(generator())).detach()
    assert torch.equal(policy.act(obs, explore=True, generator=generator()), expected)


def test_gaussian_actor_clips_its_samples_to_the_bounds() -> None:
    policy = GaussianActorCritic(OBS, BOX, hidden_sizes=(4,))
    nn.init.constant_(policy.actor[2].log_std, math.log(5.0))
    action = policy.act(torch.randn(200, 3), explore=True, generator=generator())
    assert action.amin(0).tolist() == [-1.0, 0.0]
    assert action.amax(0).tolist() == [1.0, 10.0]


def test_gaussian_actor_critic_has_a_value_network_of_its_own() -> None:
    policy = GaussianActorCritic(OBS, BOX, hidden_sizes=(4, 6), activation=nn.Tanh)
    assert [layer.out_features for layer in policy.value_network[1].layers] == [4, 6]
    assert all(isinstance(activation, nn.Tanh) for activation in policy.value_network[1].activations)
    value = policy.value(torch.randn(5, 3))
    assert value.shape == (5,)
    value.sum().backward()  # type: ignore[no-untyped-call]  # torch's
    untouched = [*policy.actor.parameters(), *policy.critic.parameters()]
    assert all(parameter.grad is None for parameter in untouched)


# The ensemble

UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)
NET = NetParams(hidden_sizes=(5,), activation=nn.ReLU)


def test_members_see_features_and_action() -> None:
    critic = Critic(spaces.Dict({"a": spaces.Discrete(3), "b": UNIT}), UNIT, NET, num_members=4)
    action = torch.tensor([[0.3, 0.4]], requires_grad=True)
    q = critic({"a": torch.tensor([2]), "b": torch.tensor([[0.1, 0.2]])}, action)
    assert q.shape == (4, 1)
    assert torch.equal(q, critic.ensemble(torch.tensor([[0.0, 0.0, 1.0, 0.1, 0.2, 0.3, 0.4]])))
    (gradient,) = torch.autograd.grad(q.sum(), action)
    assert gradient.abs().sum() > 0


def test_outputs_of_each_member_and_of_several_actions() -> None:
    critic = Critic(UNIT, UNIT, NET, num_members=3, num_outputs=4)
    obs, actions = torch.rand(6, 2), torch.rand(7, 6, 2)
    q = critic(obs, actions[0])
    assert q.shape == (3, 6, 4)
    first, _, last = critic.ensemble.layers
    features = (torch.cat([obs, actions[0]], 1) @ first.weight[1] + first.bias[1]).relu()
    torch.testing.assert_close(q[1], features @ last.weight[1] + last.bias[1])
    torch.testing.assert_close(critic(obs, actions[0], num_members=2), q[:2])
    torch.testing.assert_close(
        critic.values(critic.encoder(obs), actions), torch.stack([critic(obs, action) for action in actions], 1)
    )
    assert Critic(UNIT, UNIT, NET).values(obs, actions).shape == (2, 7, 6)
