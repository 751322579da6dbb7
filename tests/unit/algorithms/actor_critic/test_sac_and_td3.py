"""What SAC, TD3 and DDPG make of an ensemble's values, by hand."""

import math
from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.fakes import OBS_SPACE
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, FixedDistribution, batch
from tests.unit.collect.test_collector import BOX

ALGORITHMS: dict[str, Any] = {"sac": (rl.SAC, rl.SquashedActorCritic), "td3": (rl.TD3, rl.DeterministicActorCritic)}
Q = torch.tensor([[3.0, 1.0], [2.0, 4.0]])  # [E, B]


def make(name: str, **params: Any) -> Any:
    algorithm, policy = ALGORITHMS[name]
    return algorithm(policy.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,)), algorithm.params_class(**params))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_critic_loss_and_td_error(name: str) -> None:
    algorithm, data = make(name), batch([0.0, 0.0], [0.9, 0.9], weight=[1.0, 0.5])
    algorithm.critic = FixedCritic([[-2.0, 1.0], [2.0, -3.0]])
    loss, td_error = algorithm.critic_loss(data, torch.zeros(2), algorithm.sample_noise(data))
    # Errors [[2, -1], [-2, 3]]; (4 * 1 + 1 * 0.5) / 2 and (4 * 1 + 9 * 0.5) / 2: importance weights shrink the step.
    assert float(loss) == 2.25 + 4.25
    assert td_error.tolist() == [2.0, 2.0]  # of which a signed mean, [0, 1], would see half


@pytest.mark.parametrize("name", ALGORITHMS)
def test_targets_take_the_lower_value(name: str) -> None:
    algorithm, data = make(name), batch([1.0, 1.0], [0.5, 0.0])
    algorithm.target_critic = FixedCritic(Q)
    algorithm.temperature = lambda: 0.2
    algorithm.policy.distribution = lambda obs: FixedDistribution(-1.0)
    # 1 + 0.5 * 2; SAC adds 0.5 * 0.2 * 1 of entropy. What is terminal is worth its reward.
    expected = [2.1, 1.0] if name == "sac" else [2.0, 1.0]
    assert algorithm.critic_target(data, algorithm.sample_noise(data)).tolist() == pytest.approx(expected)


def test_sacs_actor_climbs_the_lower_value_and_td3s_the_first() -> None:
    assert make("sac").actor_value(Q).tolist() == [2.0, 1.0]
    sac, td3, data = make("sac", temperature=0.5), make("td3"), batch([0.0, 0.0], [0.9, 0.9], weight=[1.0, 0.5])
    sac.critic = td3.critic = FixedCritic(Q)
    sac.policy.distribution = lambda obs: FixedDistribution(-2.0)
    # (0.5 * -2 - 2) and half of (0.5 * -2 - 1); then the mean of 3 and half of 1.
    assert float(sac.actor_loss(data, sac.sample_noise(data))[0]) == -2.0
    assert float(td3.actor_loss(data)) == -1.75


def test_sacs_temperature_loss() -> None:
    sac = make("sac", temperature=0.5, target_entropy=-1.0)
    data = batch([0.0, 0.0], [0.9, 0.9], weight=[1.0, 0.5])
    # -ln .5 * the mean of (-2 - 1) * 1 and (3 - 1) * .5: an entropy above its target lowers the temperature.
    loss = sac.temperature_loss(torch.tensor([-2.0, 3.0]), data)
    assert loss.item() == pytest.approx(math.log(0.5))


def test_td3s_noise_on_the_targets_action_is_clipped() -> None:
    data = batch([0.0] * 200, [0.9] * 200)
    noise = make("td3", target_noise=10.0, target_noise_clip=0.3).sample_noise(data).target_noise
    assert float(noise.min()) == pytest.approx(-0.3)
    assert float(noise.max()) == pytest.approx(0.3)
    noise = make("td3", target_noise=0.1, target_noise_clip=0.3).sample_noise(data).target_noise
    assert float(noise.std()) == pytest.approx(0.1, rel=0.2)


def test_td3s_actor_has_its_turn_at_every_third_step() -> None:
    td3, data = make("td3", actor_update_interval=3), batch([0.0], [0.9])
    assert [td3.next_turn() for _ in range(3)] == [False, False, True]
    assert ["actor_loss" in td3.update(data).metrics for _ in range(6)] == [False, False, True] * 2


def test_sac_without_its_actors_turn_trains_the_critics_only() -> None:
    class Delayed(rl.SAC):
        def sample_noise(self, batch: rl.Transitions) -> Any:
            noise = super().sample_noise(batch)
            noise.is_actors_turn = False
            return noise

    policy = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,))
    algorithm = Delayed(policy)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    result = algorithm.update(batch([1.0, 2.0], [0.9, 0.9]))
    changed = {name.split(".")[0] for name, p in policy.named_parameters() if not torch.equal(before[name], p)}
    assert changed == {"critic"}
    assert list(result.metrics) == ["critic_loss"]
    assert float(algorithm.temperature()) == 1.0


def make_ddpg() -> Any:
    return rl.DDPG(rl.DeterministicActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), num_critics=1))


def test_ddpgs_target_has_no_noise_and_its_actor_climbs_the_one_critic() -> None:
    algorithm, data = make_ddpg(), batch([1.0, 1.0], [0.5, 0.0])
    noise = algorithm.sample_noise(data)
    assert noise.target_noise.abs().max() == 0.0
    assert noise.is_actors_turn
    algorithm.target_critic = FixedCritic([[3.0, 3.0]])
    assert algorithm.critic_target(data, noise).tolist() == [2.5, 1.0]  # 1 + 0.5 * 3, and what is terminal
    algorithm.critic = FixedCritic([[3.0, 1.0]])
    assert float(algorithm.actor_loss(data)) == -2.0


def test_actor_and_targets_are_trained_at_each_step() -> None:
    rl.seed(1)  # some weights would be those of a dead network
    algorithm = make_ddpg()
    networks = (algorithm.actor, algorithm.target_actor, algorithm.target_critic)
    before = [torch.nn.utils.parameters_to_vector(network.parameters()).clone() for network in networks]
    algorithm.update(batch([1.0, 2.0], [0.9, 0.9]))
    for network, weights in zip(networks, before, strict=True):
        assert not torch.equal(torch.nn.utils.parameters_to_vector(network.parameters()), weights)
