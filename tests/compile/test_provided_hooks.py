"""Provided hooks that change data, in compiled updates: these learn what uncompiled ones do, and stay compiled."""

from typing import Any

import gymnasium as gym
import pytest
import torch

import rltrainer as rl
from tests.compile.test_compiled_updates import _fresh_compiler
from tests.compile.traced import _traced_only
from tests.resume.steered import steered_envs

pytestmark = pytest.mark.full  # every test compiles

__all__ = ["_fresh_compiler", "_traced_only"]  # fixtures: every test here starts with nothing compiled


def trained(is_on_policy: bool, is_compiled: bool) -> dict[str, torch.Tensor]:
    rl.seed(0)
    envs = steered_envs(2, gym.spaces.Discrete(2), kind="hindsight", backend="sync")
    policy_class: Any = rl.ActorCritic if is_on_policy else rl.QNetwork
    policy = policy_class.for_envs(envs, net=rl.NetParams(hidden_sizes=(8,), keys=("observation",)))
    algorithm: Any = rl.PPO(policy) if is_on_policy else rl.DQN(policy)
    spaces = (envs.single_observation_space, envs.single_action_space)
    buffer = None if is_on_policy else rl.ReplayBuffer(100, *spaces, num_envs=2)
    hooks: list[rl.TrainerHook] = [rl.RewardNormalizer(), rl.SelectKeys(obs=["observation"])]
    options: dict[str, Any] = {
        "training_collector": rl.Collector(policy, envs, buffer), "max_epochs": 1, "epoch_num_steps": 100,
        "collection_step_num_env_steps": 20, "batch_size": 8, "seed": 3, "show_progress": False, "verbose": False,
        "runtime": rl.RuntimeParams(compile=is_compiled), "hooks": hooks + [rl.BatchSubSampler(16, 4)] * is_on_policy,
    }  # fmt: skip
    params: Any = rl.OnPolicyTrainerParams(**options) if is_on_policy else rl.OffPolicyTrainerParams(**options)
    algorithm.run_training(params)
    assert algorithm.is_compiled == is_compiled
    return dict(policy.state_dict())


@pytest.mark.parametrize("is_on_policy", [True, False])
@pytest.mark.usefixtures("_traced_only")
def test_compiled_updates_learn_the_same(is_on_policy: bool) -> None:
    compiled, uncompiled = (trained(is_on_policy, is_compiled) for is_compiled in (True, False))
    for name, weight in uncompiled.items():
        torch.testing.assert_close(compiled[name], weight, rtol=0, atol=2e-5, msg=name)
