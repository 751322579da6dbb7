"""Agents that share a policy solve what needs all of them, and what asks who they are only if they are told."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl

NUM_AGENTS = 3


class Together:
    """Cooperative, one step: all are rewarded with 1 if each agent answers its own question, else with 0.

    Args:
        by_name: the answer is the agent's number, and the observation says nothing; else the observation is the answer.
    """

    def __init__(self, by_name: bool) -> None:
        self.possible_agents, self.by_name = [f"agent_{i}" for i in range(NUM_AGENTS)], by_name

    def observation_space(self, agent: str) -> Any:
        return gym.spaces.Box(0.0, 1.0, (NUM_AGENTS,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(NUM_AGENTS)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.answers = np.arange(NUM_AGENTS) if self.by_name else self.random.integers(NUM_AGENTS, size=NUM_AGENTS)
        return self._obs(), {}

    def step(self, actions: dict[str, Any]) -> Any:
        reward = float(all(actions[name] == answer for name, answer in zip(self.agents, self.answers, strict=True)))
        acted, self.agents = self.agents, []
        return self._obs(), dict.fromkeys(acted, reward), dict.fromkeys(acted, True), dict.fromkeys(acted, False), {}

    def close(self) -> None: ...

    def _obs(self) -> Any:
        seen = np.zeros((NUM_AGENTS, NUM_AGENTS), np.float32)
        if not self.by_name:
            seen[range(NUM_AGENTS), self.answers] = 1.0
        return dict(zip(self.possible_agents, seen, strict=True))


def agents(by_name: bool, agent_id: bool = False) -> Any:
    return rl.AgentsAsEnvs(lambda: Together(by_name), 8, agent_id=agent_id)


def joint(by_name: bool) -> Any:
    return rl.make_vec(lambda: rl.JointEnv(Together(by_name), reward="mean"), 8, backend="sync")


def greedy_return(make: Any, algorithm: str, epochs: int) -> float:
    """Return the mean return of what was learned."""
    rl.seed(1)
    envs = make()
    options: dict[str, Any] = {
        "max_epochs": epochs, "epoch_num_steps": 1024 * envs.num_envs // 8, "show_progress": False, "verbose": False,
        "runtime": rl.RuntimeParams(compile=False), "seed": 1,
    }  # fmt: skip
    if algorithm == "ppo":
        policy: Any = rl.ActorCritic.for_envs(envs, hidden_sizes=(32,))
        params: Any = rl.OnPolicyTrainerParams(
            training_collector=rl.Collector(policy, envs), collection_step_num_env_steps=32 * envs.num_envs,
            batch_size=128, update_step_num_repetitions=4, **options,
        )  # fmt: skip
        learner: Any = rl.PPO(policy, rl.PPOParams(lr=1e-2, entropy_coef=0.01))
    else:
        policy = rl.QNetwork.for_envs(envs, hidden_sizes=(32,))
        spaces = envs.single_observation_space, envs.single_action_space
        buffer = rl.ReplayBuffer(5000, *spaces, num_envs=envs.num_envs)
        params = rl.OffPolicyTrainerParams(
            training_collector=rl.Collector(policy, envs, buffer), collection_step_num_env_steps=envs.num_envs,
            update_step_num_gradient_steps_per_sample=0.1, warmup_num_env_steps=500, **options,
        )  # fmt: skip
        learner = rl.DQN(policy, rl.DQNParams(lr=5e-3, target_update_interval=20, epsilon=rl.LinearSchedule(0.5, 0.05)))
    learner.run_training(params)
    with torch.no_grad():
        return rl.evaluate_policy(policy, make(), 96, seed=1).returns_stat.mean  # type: ignore[union-attr]  # episodes ended


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_agents_that_share_a_policy_act_on_what_each_sees(algorithm: str) -> None:
    assert greedy_return(lambda: agents(by_name=False), algorithm, 4) > 0.95


def test_agents_that_are_told_who_they_are_share_the_work() -> None:
    assert greedy_return(lambda: agents(by_name=True, agent_id=True), "ppo", 6) > 0.95


def test_agents_that_cannot_know_who_they_are_do_not() -> None:
    assert greedy_return(lambda: agents(by_name=True), "ppo", 6) == 0.0


def test_one_policy_for_all() -> None:
    assert greedy_return(lambda: joint(by_name=False), "ppo", 8) > 0.95
