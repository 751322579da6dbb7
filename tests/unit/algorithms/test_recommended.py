"""Fields that train well: what each algorithm names, and that its trainer takes them."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rltrainer as rl
from tests.fakes import POLICY_OPTIONS, CountingEnv, built, counting_envs

ONLINE = [rl.PPO, rl.A2C, rl.IMPALA, rl.TRPO, rl.RecurrentPPO, rl.REINFORCE, rl.DQN, rl.DoubleDQN, rl.TD3, rl.SAC]
ONLINE += [rl.DDPG, rl.TQC, rl.REDQ, rl.CrossQ, rl.C51, rl.QRDQN, rl.DiscreteSAC, rl.PQN, rl.XQC, rl.SimbaV2]
ONLINE += [rl.FlashSAC, rl.Distillation, rl.RecurrentPQN]


class ImageEnv(CountingEnv):
    """Shows an image beside a vector."""

    def __init__(self) -> None:
        super().__init__()
        image = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.observation_space = gym.spaces.Dict(image=image, vector=gym.spaces.Box(0, 1, (2,)))


def images(num_envs: int) -> Any:
    return rl.make_vec(ImageEnv, num_envs, backend="sync")


@pytest.mark.parametrize("algorithm", ONLINE)
@pytest.mark.parametrize("num_envs", [1, 8])
def test_the_trainer_takes_them(algorithm: Any, num_envs: int) -> None:
    policy_class = rl.RecurrentActorCritic if algorithm is rl.Distillation else algorithm.policy_class
    is_discrete = issubclass(policy_class, rl.Actor | rl.QNetwork | rl.RecurrentActorCritic | rl.RecurrentQNetwork)
    box = gym.spaces.Box(-1, 1, (1,), np.float32)
    envs = counting_envs(num_envs, action_space=None if is_discrete else box)
    agent = built(algorithm, policy_class.for_envs(envs, hidden_sizes=(8,), **POLICY_OPTIONS.get(algorithm, {})))
    fields = algorithm.recommended(envs)
    if issubclass(algorithm, rl.OnPolicyAlgorithm):
        params: Any = rl.OnPolicyTrainerParams(training_collector=rl.Collector(agent.policy, envs), **fields)
    else:
        buffer = rl.ReplayBuffer(100, envs.single_observation_space, envs.single_action_space, num_envs=num_envs)
        params = rl.OffPolicyTrainerParams(training_collector=rl.Collector(agent.policy, envs, buffer), **fields)
    params.create_trainer(agent)
    assert all(getattr(params, name) == value for name, value in fields.items())


@pytest.mark.parametrize("algorithm", [rl.BC, rl.TD3BC, rl.ReBRAC, rl.FQL, rl.IQL, rl.CQL, rl.CalQL, rl.DiscreteCQL])
def test_offline_algorithms_need_no_envs(algorithm: Any) -> None:
    envs = counting_envs(2)
    buffer = rl.ReplayBuffer(10, envs.single_observation_space, envs.single_action_space, num_envs=2)
    rl.Collector(rl.Actor.for_envs(envs), envs, buffer).collect(num_steps=10)
    assert algorithm.recommended() == algorithm.recommended(envs) == {"batch_size": 256}
    assert rl.OfflineTrainerParams(buffer=buffer, **algorithm.recommended()).batch_size == 256


def test_ppo_keeps_its_number_of_minibatches() -> None:
    for num_envs, num_steps, batch_size in ((1, 2048, 64), (8, 2048, 64), (64, 2048, 64), (256, 8192, 256)):
        fields = rl.PPO.recommended(counting_envs(num_envs))
        assert (fields["collection_step_num_env_steps"], fields["batch_size"]) == (num_steps, batch_size)


def test_images_train_otherwise() -> None:
    assert rl.PPO.recommended(images(8)) == {
        "collection_step_num_env_steps": 1024, "batch_size": 256, "update_step_num_repetitions": 4
    }  # fmt: skip
    assert rl.DoubleDQN.recommended(images(1)) == {
        "collection_step_num_env_steps": 4, "batch_size": 32, "update_step_num_gradient_steps_per_sample": 0.25,
        "warmup_num_env_steps": 50_000,
    }  # fmt: skip


def test_a2c_takes_five_steps_of_each_env() -> None:
    assert rl.A2C.recommended(counting_envs(16))["collection_step_num_env_steps"] == 80
