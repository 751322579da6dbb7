"""DDPG: TD3's target without noise and with one critic, and its errors."""

from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, batch
from tests.unit.collect.test_collector import BOX, OBS_SPACE


def make() -> Any:
    return rl.DDPG(rl.DeterministicActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), num_critics=1))


def test_target_and_actor_loss() -> None:
    algorithm, data = make(), batch([1.0, 1.0], [0.5, 0.0])
    noise = algorithm.sample_noise(data)
    assert noise.target_noise.abs().max() == 0.0
    assert noise.is_actors_turn
    algorithm.target_critic = FixedCritic([[3.0, 3.0]])
    assert algorithm.critic_target(data, noise).tolist() == [2.5, 1.0]  # 1 + 0.5 * 3, and what is terminal
    algorithm.critic = FixedCritic([[3.0, 1.0]])
    assert float(algorithm.actor_loss(data)) == -2.0


def test_actor_and_targets_are_trained_at_each_step() -> None:
    rl.seed(1)  # some weights would be those of a dead network
    algorithm = make()
    networks = (algorithm.actor, algorithm.target_actor, algorithm.target_critic)
    before = [torch.nn.utils.parameters_to_vector(network.parameters()).clone() for network in networks]
    algorithm.update(batch([1.0, 2.0], [0.9, 0.9]))
    for network, weights in zip(networks, before, strict=True):
        assert not torch.equal(torch.nn.utils.parameters_to_vector(network.parameters()), weights)


def test_a_second_critic_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"DDPG.policy.num_critics: must be 1; got 2 \(int\)"):
        rl.DDPG(rl.DeterministicActorCritic.for_spaces(OBS_SPACE, BOX))


@pytest.mark.parametrize("name", ["target_noise", "target_noise_clip", "actor_update_interval"])
def test_what_td3_adds_is_refused(name: str) -> None:
    value = getattr(rl.TD3Params(), name) * 2
    with pytest.raises(ParamsError, match=f"DDPGParams.{name}: must be left out; got {value} .* TD3 adds to DDPG."):
        rl.DDPGParams(**{name: value})
