"""The actor-critic of on-policy algorithms: what its networks share, and how they start."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltrainer.nets import Actor, ActorCritic, QNetwork

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
DISCRETE = spaces.Discrete(3)


def picture() -> torch.Tensor:
    return torch.randint(0, 256, (2, 36, 36, 1), dtype=torch.uint8)


def test_value_is_one_number_per_observation() -> None:
    policy = ActorCritic(OBS, DISCRETE, hidden_sizes=(4,))
    obs = torch.randn(5, 3)
    assert policy.value(obs).shape == (5,)
    assert torch.equal(policy.value(obs), policy.critic(obs)[:, 0])


@pytest.mark.parametrize("share_encoder", [False, True])
def test_share_encoder_shares(share_encoder: bool) -> None:
    policy = ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=share_encoder)
    assert (policy.critic[0] is policy.actor[0]) == share_encoder
    policy.value(picture()).sum().backward()
    reached = [parameter.grad is not None for parameter in policy.actor[0].parameters()]
    assert reached == [share_encoder] * len(reached)
    assert reached, "the encoder has weights"


def test_a_shared_encoder_is_counted_once() -> None:
    shared, apart = (
        sum(p.numel() for p in ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=share).parameters())
        for share in (True, False)
    )
    encoder = sum(p.numel() for p in ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,)).actor[0].parameters())
    assert apart == shared + encoder


def test_actor_starts_near_uniform_and_the_critic_does_not_start_flat() -> None:
    policy = ActorCritic(OBS, DISCRETE)
    obs = torch.randn(100, 3)
    with torch.no_grad():
        distribution = policy.distribution(obs)
        assert distribution.entropy().min() > 0.999 * np.log(3)
        assert policy.value(obs).std() > 0.1


def test_actor_and_critic_are_trained_apart() -> None:
    policy = ActorCritic(OBS, DISCRETE, hidden_sizes=(4,))
    policy.distribution(torch.randn(5, 3)).log_prob(torch.zeros(5, dtype=torch.int64)).sum().backward()
    assert all(parameter.grad is not None for parameter in policy.actor.parameters())
    assert all(parameter.grad is None for parameter in policy.critic.parameters())


def test_mode_of_the_distribution_is_what_acting_takes() -> None:
    policy = Actor(OBS, DISCRETE, hidden_sizes=(4,))
    obs = torch.randn(20, 3)
    assert torch.equal(policy.act(obs), policy.distribution(obs).mode())
    sample = policy.distribution(obs).sample(torch.Generator().manual_seed(1))
    assert torch.equal(policy.act(obs, explore=True, generator=torch.Generator().manual_seed(1)), sample)


def test_without_hidden_layers_the_head_sits_on_the_features() -> None:
    policy = ActorCritic(OBS, DISCRETE, hidden_sizes=())
    obs = torch.randn(5, 3)
    torch.testing.assert_close(policy.value(obs), obs @ policy.critic[2].weight[0] + policy.critic[2].bias[0])
    assert policy.act(obs).shape == (5,)


def assert_orthogonal(weight: torch.Tensor, gain: float) -> None:
    flat = weight.detach().flatten(1)
    flat = flat if flat.shape[0] <= flat.shape[1] else flat.T
    torch.testing.assert_close(flat @ flat.T, gain**2 * torch.eye(len(flat)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("share_encoder", [False, True])
def test_images_start_orthogonal_with_a_gain_of_sqrt_2(share_encoder: bool) -> None:
    policy = ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=share_encoder)
    for encoder in {policy.actor[0], policy.critic[0]}:
        layers = [layer for layer in encoder.modules() if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)]
        assert len(layers) == 4
        for layer in layers:
            assert_orthogonal(layer.weight, 2**0.5)
            assert not layer.bias.any()


def test_a_shared_encoder_is_initialised_once() -> None:
    torch.manual_seed(1)
    alone = Actor(IMAGE, DISCRETE, hidden_sizes=(4,))
    torch.manual_seed(1)
    shared = ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=True)
    assert all(torch.equal(value, shared.state_dict()[name]) for name, value in alone.state_dict().items())


def test_without_images_the_random_numbers_go_to_the_layers_alone() -> None:
    """So that networks start as they always did."""
    torch.manual_seed(1)
    policy = Actor(OBS, DISCRETE, hidden_sizes=(4,))
    torch.manual_seed(1)
    layer = torch.nn.Linear(3, 4)
    torch.nn.init.orthogonal_(layer.weight, 2**0.5)
    assert torch.equal(policy.actor[1].layers[0].weight, layer.weight)


def test_q_networks_keep_torchs_initialisation() -> None:
    torch.manual_seed(1)
    policy = QNetwork(IMAGE, DISCRETE, hidden_sizes=(4,))
    torch.manual_seed(1)
    assert torch.equal(policy.critic[0].parts[0].conv[0].weight, torch.nn.Conv2d(1, 32, 8, 4).weight)


@pytest.mark.parametrize("share_encoder", [False, True])
def test_evaluate_is_the_distribution_and_the_value_in_one_pass(share_encoder: bool) -> None:
    torch.manual_seed(0)
    policy = ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=share_encoder)
    obs, encoded = picture(), []
    for encoder in {policy.actor[0], policy.critic[0]}:
        encoder.register_forward_hook(lambda *_: encoded.append(1))
    distribution, value = policy.evaluate(obs)
    assert len(encoded) == (1 if share_encoder else 2)
    torch.testing.assert_close(value, policy.value(obs))
    torch.testing.assert_close(distribution.entropy(), policy.distribution(obs).entropy())


def test_evaluate_calls_hooks_of_whole_networks() -> None:
    policy, seen = ActorCritic(IMAGE, DISCRETE, hidden_sizes=(4,), share_encoder=True), []
    policy.critic.register_forward_hook(lambda *_: seen.append("critic"))
    policy.evaluate(picture())
    assert seen == ["critic"]
