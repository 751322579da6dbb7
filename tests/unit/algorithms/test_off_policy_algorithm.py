"""Rewards that an off-policy algorithm learns from: stored raw, divided by the spread of returns as they are used."""

from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError
from tests.fakes import OBS_SPACE, counting_envs
from tests.unit.algorithms.actor_critic.by_hand import batch
from tests.unit.collect.test_collector import BOX

QUIET: dict[str, Any] = {"show_progress": False, "verbose": False, "max_epochs": 1}


class Seeing(rl.SAC):
    """Remembers the rewards of its last gradient step."""

    def gradient_step(self, batch: rl.Transitions, noise: Any) -> rl.UpdateResult:
        self.seen = batch.reward.tolist()
        return super().gradient_step(batch, noise)


def make(algorithm: type[Any], policy: type[Any] = rl.SquashedActorCritic, **options: Any) -> Any:
    return algorithm(policy.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), normalize_reward=True, **options))


def test_rewards_are_scaled_in_the_update_only() -> None:
    algorithm, data = make(Seeing), batch([3.0, -100.0], [0.9, 0.9])
    algorithm.update(data)
    assert algorithm.seen == [3.0, -10.0]  # nothing seen yet: clipped, as by a standard deviation of 1
    algorithm.policy.reward_normalizer.moments.var.fill_(4.0)
    algorithm.update(data)
    assert algorithm.seen == [1.5, -10.0]
    assert data.reward.tolist() == [3.0, -100.0]


def test_a_trainer_merges_the_returns_of_what_it_collects() -> None:
    envs = counting_envs(2, length=5, reward=2.0, action_space=BOX)
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,), normalize_reward=True)
    algorithm = rl.SAC(policy, rl.SACParams(gamma=0.5))
    buffer = rl.ReplayBuffer(100, envs.single_observation_space, BOX, num_envs=2)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs, buffer), epoch_num_steps=40, batch_size=8,
        collection_step_num_env_steps=10, initial_statistics_num_env_steps=20, **QUIET,
    )  # fmt: skip
    rl.OffPolicyTrainer(algorithm, params).run()
    normalizer: Any = algorithm.policy.reward_normalizer
    assert int(normalizer.moments.count) == 60
    # Discounted sums of an episode's rewards so far: 2, 3, 3.5, 3.75, 3.875, of variance 4 * 0.11625.
    assert float(normalizer.moments.var) == pytest.approx(0.465)
    assert buffer.sample(50).reward.tolist() == [2.0] * 50


def test_offline_there_are_no_returns_to_scale_by() -> None:
    obs, flags = torch.zeros(4, 2).numpy(), torch.zeros(4, dtype=torch.bool).numpy()
    buffer = rl.ReplayBuffer.from_arrays(
        observations=obs, actions=torch.zeros(4, 1).numpy(), rewards=torch.ones(4).numpy(), terminations=~flags,
        truncations=flags, observation_space=OBS_SPACE, action_space=BOX,
    )  # fmt: skip
    text = r"SquashedActorCritic.normalize_reward: must be False before offline training; got True \(bool\). Scale the"
    with pytest.raises(ParamsError, match=text):
        make(rl.SAC).prepare(buffer)
    make(rl.BC).prepare(buffer)  # looks at no reward
    trained_in_envs = make(rl.IQL, rl.GaussianActorCritic)
    trained_in_envs.policy.reward_normalizer.moments.count.fill_(1)
    trained_in_envs.prepare(buffer)
