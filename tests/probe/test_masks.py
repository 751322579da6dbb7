"""What is not allowed is not learned: the best of the allowed actions, and its value, are."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl

GAMMA = 0.5


class BestForbidden(gym.Env[Any, Any]):
    """Two steps. The second is rewarded with the number of its action: 0, 1, 2. Below sign -1, 2 is not allowed there.

    So the first observation is worth gamma * 2 for sign 1, and gamma * 1 for sign -1.
    """

    action_space = gym.spaces.Discrete(3)
    observation_space = gym.spaces.Dict(
        action_mask=gym.spaces.MultiBinary(3), seen=gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.num_steps, self.sign = 0, self.np_random.choice([-1, 1])
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert self._obs()["action_mask"][action], "not allowed"
        self.num_steps += 1
        return self._obs(), float(action) * (self.num_steps == 2), self.num_steps == 2, False, {}

    def _obs(self) -> Any:
        return observe(self.sign, self.num_steps)


def observe(sign: int, num_steps: int) -> dict[str, Any]:
    is_free = sign > 0 or num_steps != 1
    return {"action_mask": np.array([1, 1, is_free], np.int8), "seen": np.array([sign, num_steps], np.float32)}


def trained(name: str) -> Any:
    rl.seed(0)
    envs = rl.make_vec(BestForbidden, 8, backend="sync", seed=3)
    options: dict[str, Any] = {"max_epochs": 1, "show_progress": False, "verbose": False, "seed": 1}
    if name == "ppo":
        algorithm: Any = rl.PPO(
            rl.ActorCritic.for_envs(envs, hidden_sizes=(16,)), rl.PPOParams(lr=1e-2, gamma=GAMMA, gae_lambda=0.0)
        )
        params: Any = rl.OnPolicyTrainerParams(
            training_collector=rl.Collector(algorithm.policy, envs), epoch_num_steps=10240,
            collection_step_num_env_steps=256, batch_size=64, update_step_num_repetitions=4, **options,
        )  # fmt: skip
    else:
        dqn = rl.DQNParams(lr=1e-2, gamma=GAMMA, target_update_interval=20, epsilon=0.5, double=name == "double_dqn")
        algorithm = rl.DQN(rl.QNetwork.for_envs(envs, hidden_sizes=(16,)), dqn)
        buffer = rl.ReplayBuffer(2000, envs.single_observation_space, envs.single_action_space, num_envs=8)
        params = rl.OffPolicyTrainerParams(
            training_collector=rl.Collector(algorithm.policy, envs, buffer), epoch_num_steps=4000,
            collection_step_num_env_steps=8, update_step_num_gradient_steps_per_sample=0.25,
            warmup_num_env_steps=400, **options,
        )  # fmt: skip
    params.create_trainer(algorithm).run()
    return algorithm


@pytest.mark.parametrize("name", ["ppo", "dqn", "double_dqn"])
def test_the_best_allowed_action_and_its_value(name: str) -> None:
    algorithm = trained(name)

    def at(num_steps: int) -> Any:
        rows = [observe(sign, num_steps) for sign in (-1, 1)]
        return {key: torch.from_numpy(np.stack([row[key] for row in rows])) for key in rows[0]}

    assert algorithm.policy.act(at(1)).tolist() == [1, 2]
    with torch.no_grad():
        policy = algorithm.policy
        value = policy.value(at(0)) if name == "ppo" else policy.q_values(at(0)).amax(1)
    assert value.tolist() == pytest.approx([GAMMA * 1, GAMMA * 2], abs=0.12)
