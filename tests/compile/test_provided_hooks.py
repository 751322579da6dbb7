"""Provided hooks that change data, in compiled updates: these learn what uncompiled ones do, and stay compiled."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from tests.compile.test_compiled_updates import _fresh_compiler

pytestmark = pytest.mark.full  # every test compiles

__all__ = ["_fresh_compiler"]  # a fixture: every test here starts with nothing compiled


class TwoParts(gym.Env[Any, Any]):
    """Observes a position, that changes with the action and is rewarded, and a picture that no network sees."""

    observation_space = gym.spaces.Dict(
        position=gym.spaces.Box(-9, 9, (2,), np.float32), picture=gym.spaces.Box(0, 255, (4, 4), np.uint8)
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.num_steps = self.np_random.normal(0, 1, 2).astype(np.float32), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position[int(action)] *= -0.5
        self.num_steps += 1
        return self._obs(), float(10 + self.position[0]), False, self.num_steps == 5, {}

    def _obs(self) -> dict[str, Any]:
        return {"position": self.position.copy(), "picture": np.zeros((4, 4), np.uint8)}


def trained(is_on_policy: bool, is_compiled: bool) -> dict[str, torch.Tensor]:
    rl.seed(0)
    envs = rl.make_vec(TwoParts, 2, backend="sync")
    policy_class: Any = rl.ActorCritic if is_on_policy else rl.QNetwork
    policy = policy_class.for_envs(envs, net=rl.NetParams(hidden_sizes=(8,), keys=("position",)))
    algorithm: Any = rl.PPO(policy) if is_on_policy else rl.DQN(policy)
    spaces = (envs.single_observation_space, envs.single_action_space)
    buffer = None if is_on_policy else rl.ReplayBuffer(100, *spaces, num_envs=2)
    hooks: list[rl.TrainerHook] = [rl.RewardNormalizer(), rl.SelectKeys(obs=["position"])]
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
def test_compiled_updates_learn_the_same(is_on_policy: bool) -> None:
    compiled, uncompiled = (trained(is_on_policy, is_compiled) for is_compiled in (True, False))
    for name, weight in uncompiled.items():
        torch.testing.assert_close(compiled[name], weight, rtol=0, atol=2e-5, msg=name)
