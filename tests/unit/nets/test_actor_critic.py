"""The actor-critics of on-policy algorithms and of discrete SAC: what their networks share, and how they start."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import rltrainer as rl
from rltrainer.nets.actor_critic import Critic
from tests.batches import generator

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
DISCRETE = spaces.Discrete(3)
both_ways = pytest.mark.parametrize("share_encoder", [False, True])


def picture() -> torch.Tensor:
    return torch.randint(0, 256, (2, 36, 36, 1), dtype=torch.uint8)


@both_ways
def test_share_encoder_shares(share_encoder: bool) -> None:
    policy = rl.ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=share_encoder)
    assert (policy.critic[0] is policy.actor[0]) == share_encoder
    policy.value(picture()).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    reached = [parameter.grad is not None for parameter in policy.actor[0].parameters()]
    assert reached == [share_encoder] * 8  # four layers


def test_actor_starts_near_uniform_and_the_critic_does_not_start_flat() -> None:
    policy, obs = rl.ActorCritic(OBS, DISCRETE), torch.randn(100, 3)
    with torch.no_grad():
        assert policy.distribution(obs).entropy().min() > 0.999 * np.log(3)
        assert policy.value(obs).std() > 0.1
        assert torch.equal(policy.value(obs), policy.critic(obs)[:, 0])


def test_actor_and_critic_are_trained_apart() -> None:
    policy = rl.ActorCritic(OBS, DISCRETE, hidden_sizes=(4,))
    policy.distribution(torch.randn(5, 3)).log_prob(torch.zeros(5, dtype=torch.int64)).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    assert all(parameter.grad is not None for parameter in policy.actor.parameters())
    assert all(parameter.grad is None for parameter in policy.critic.parameters())


def test_acting_takes_the_mode_or_a_sample_of_the_distribution() -> None:
    policy, obs = rl.Actor(OBS, DISCRETE, hidden_sizes=(4,)), torch.randn(20, 3)
    assert torch.equal(policy.act(obs), policy.distribution(obs).mode())
    sample = policy.distribution(obs).sample(torch.Generator().manual_seed(1))
    assert torch.equal(policy.act(obs, explore=True, generator=torch.Generator().manual_seed(1)), sample)


@both_ways
def test_images_start_orthogonal_with_a_gain_of_sqrt_2(share_encoder: bool) -> None:
    policy = rl.ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=share_encoder)
    for encoder in {policy.actor[0], policy.critic[0]}:
        layers = [layer for layer in encoder.modules() if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)]
        assert len(layers) == 4
        for layer in layers:
            flat = layer.weight.detach().flatten(1)
            flat = flat if flat.shape[0] <= flat.shape[1] else flat.T
            torch.testing.assert_close(flat @ flat.T, 2 * torch.eye(len(flat)), atol=1e-4, rtol=0)
            assert layer.bias is not None
            assert not layer.bias.any()


def test_initial_weights_are_drawn_for_the_layers_alone_and_once() -> None:
    torch.manual_seed(1)
    alone = rl.Actor(IMAGE, DISCRETE, hidden_sizes=(4,))
    torch.manual_seed(1)
    shared = rl.ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=True)
    assert all(torch.equal(value, shared.state_dict()[name]) for name, value in alone.state_dict().items())
    torch.manual_seed(1)
    policy = rl.Actor(OBS, DISCRETE, hidden_sizes=(4,))
    torch.manual_seed(1)
    layer = torch.nn.Linear(3, 4)
    torch.nn.init.orthogonal_(layer.weight, 2**0.5)
    assert torch.equal(policy.actor[1].layers[0].weight, layer.weight)
    torch.manual_seed(1)
    values = rl.QNetwork(IMAGE, DISCRETE, hidden_sizes=(4,))
    torch.manual_seed(1)
    assert torch.equal(values.critic[0].parts[0].conv[0].weight, torch.nn.Conv2d(1, 32, 8, 4).weight)


@both_ways
def test_evaluate_is_the_distribution_and_the_value_in_one_pass(share_encoder: bool) -> None:
    policy = rl.ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=share_encoder)
    obs, encoded = picture(), []
    for encoder in {policy.actor[0], policy.critic[0]}:
        encoder.register_forward_hook(lambda *_: encoded.append(1))
    distribution, value = policy.evaluate(obs)
    assert len(encoded) == (1 if share_encoder else 2)
    torch.testing.assert_close(value, policy.value(obs))
    torch.testing.assert_close(distribution.entropy(), policy.distribution(obs).entropy())


def test_evaluate_calls_hooks_of_whole_networks() -> None:
    policy, seen = rl.ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=True), []
    policy.critic.register_forward_hook(lambda *_: seen.append("critic"))
    policy.evaluate(picture())
    assert seen == ["critic"]


# Critics that value every choice


def test_values_of_all_choices() -> None:
    policy: Any = rl.DiscreteActorCritic(OBS, spaces.Discrete(3, start=5), hidden_sizes=())
    with torch.no_grad():
        policy.actor[2].linear.weight.zero_()
        policy.actor[2].linear.bias.copy_(torch.tensor([0.5, 0.3, 0.2]).log())
        policy.critic[1].layers[-1].weight.zero_()
        policy.critic[1].layers[-1].bias.copy_(torch.tensor([[[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]]]))
    obs = torch.zeros(2, 3)
    assert policy.critic(obs).tolist() == [[[1.0, 2.0, 3.0]] * 2, [[4.0, 5.0, 6.0]] * 2]
    assert policy.act(obs).tolist() == [5, 5]
    assert policy.distribution(obs).log_probs.exp()[0].tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_the_critics_may_be_others_than_the_actor() -> None:
    policy = rl.DiscreteActorCritic(OBS, spaces.Discrete(2), critic_net=rl.NetParams(hidden_sizes=(8,)))
    assert [p.shape[-1] for p in policy.critic.parameters()] == [8, 8, 2, 2]
    assert policy.actor[1].out_features == 256


# Policies of off-policy continuous control


OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
every_policy = pytest.mark.parametrize(
    "cls", [rl.DeterministicActorCritic, rl.SquashedActorCritic, rl.GaussianActorCritic]
)


def test_scale_by_hand() -> None:
    policy = rl.DeterministicActorCritic(OBS, BOX, hidden_sizes=(4,))
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
    unit = policy.actor(obs) if cls is rl.DeterministicActorCritic else policy.actor(obs).mode()
    assert unit.abs().max() <= 1
    assert torch.equal(policy.act(obs), policy.scale(unit).detach())
    if cls is rl.DeterministicActorCritic:
        assert torch.equal(policy.act(obs, explore=True), policy.act(obs)), "its exploration is another object's"


def test_squashed_actor_samples_its_distribution() -> None:
    policy, obs = rl.SquashedActorCritic(OBS, BOX, hidden_sizes=(4,)), torch.randn(6, 3)
    expected = policy.scale(policy.distribution(obs).sample(generator(1))).detach()
    assert torch.equal(policy.act(obs, explore=True, generator=generator(1)), expected)


def test_gaussian_actor_clips_its_samples_to_the_bounds() -> None:
    policy = rl.GaussianActorCritic(OBS, BOX, hidden_sizes=(4,))
    nn.init.constant_(policy.actor[2].log_std, math.log(5.0))
    action = policy.act(torch.randn(200, 3), explore=True, generator=generator(1))
    assert action.amin(0).tolist() == [-1.0, 0.0]
    assert action.amax(0).tolist() == [1.0, 10.0]


def test_gaussian_actor_critic_has_a_value_network_of_its_own() -> None:
    policy = rl.GaussianActorCritic(OBS, BOX, hidden_sizes=(4, 6), activation=nn.Tanh)
    assert [layer.out_features for layer in policy.value_network[1].layers] == [4, 6]
    assert all(isinstance(activation, nn.Tanh) for activation in policy.value_network[1].activations)
    value = policy.value(torch.randn(5, 3))
    assert value.shape == (5,)
    value.sum().backward()  # type: ignore[no-untyped-call]  # torch's
    untouched = [*policy.actor.parameters(), *policy.critic.parameters()]
    assert all(parameter.grad is None for parameter in untouched)


# The ensemble

UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)
NET = rl.NetParams(hidden_sizes=(5,), activation=nn.ReLU)


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
