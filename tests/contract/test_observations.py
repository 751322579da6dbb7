"""Every algorithm trains on Dict observations, and the first two kinds on images, through collector and buffer."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rltrainer as rl
from tests.contract.test_all_algorithms import BOX, OBS, OFF_POLICY, make

QUIET: dict[str, Any] = {"max_epochs": 1, "epoch_num_steps": 16, "show_progress": False, "verbose": False, "seed": 1}
IMAGE = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
CASES = [(name, OBS) for name in ("ppo", "a2c_box", *OFF_POLICY)]
CASES += [(name, IMAGE) for name in ("ppo", "dqn", "sac", "discrete_sac", "cql")]


class SampledEnv(gym.Env[Any, Any]):
    """Observes samples of any space; episodes of 3 steps."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.num_steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.num_steps += 1
        return self.observation_space.sample(), 1.0, self.num_steps >= 3, False, {}


@pytest.mark.parametrize(("name", "observation_space"), CASES)
def test_trains(name: str, observation_space: Any) -> None:
    algorithm = make(name)
    action_space = algorithm.policy.action_space
    envs = rl.make_vec(lambda: SampledEnv(observation_space, action_space), 2, backend="sync")
    if observation_space is IMAGE:
        algorithm = type(algorithm)(type(algorithm.policy).for_envs(envs, hidden_sizes=(8,)))
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        collector = rl.Collector(algorithm.policy, envs)
        params: Any = rl.OnPolicyTrainerParams(
            training_collector=collector, collection_step_num_env_steps=8, batch_size=4, **QUIET
        )
    else:
        buffer = rl.ReplayBuffer(20, observation_space, action_space, num_envs=2)
        collector = rl.Collector(algorithm.policy, envs, buffer)
        params = rl.OffPolicyTrainerParams(
            training_collector=collector, collection_step_num_env_steps=8, batch_size=4,
            update_step_num_gradient_steps_per_sample=0.5, **QUIET,
        )  # fmt: skip
    result = params.create_trainer(algorithm).run()
    assert result.env_step == 16
    assert result.gradient_step in (4, 8)
    assert all(np.isfinite(value) for value in result.epochs[0].update.metrics.values())


def test_iql_offline_and_then_online_is_one_object() -> None:
    rl.seed(1)
    envs = rl.make_vec(lambda: SampledEnv(OBS, BOX), 2, backend="sync")
    algorithm = rl.IQL(rl.GaussianActorCritic.for_envs(envs, hidden_sizes=(8,)))
    buffer = rl.ReplayBuffer(40, OBS, BOX, num_envs=2)
    collector = rl.Collector(algorithm.policy, envs, buffer)
    collector.collect(num_steps=20, random=True)
    rl.OfflineTrainer(algorithm, rl.OfflineTrainerParams(buffer=buffer, batch_size=4, **QUIET)).run()
    steps_offline = int(algorithm.actor_optimizer.method.num_steps)
    sizes = {"collection_step_num_env_steps": 8, "batch_size": 4}
    online = rl.OffPolicyTrainerParams(training_collector=collector, **sizes, **QUIET)
    assert rl.OffPolicyTrainer(algorithm, online).run().gradient_step == 16
    # The optimizers continued: 16 steps offline, 16 online; the offline data is still there.
    assert (steps_offline, int(algorithm.actor_optimizer.method.num_steps)) == (16, 32)
    assert len(buffer) == 36
