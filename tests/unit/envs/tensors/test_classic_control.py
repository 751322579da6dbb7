"""Each env of tensors equals gymnasium's own, step by step, under the same states and actions."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rltrainer.envs.tensors import TENSOR_ENVS

N = 200
SPREAD = {"CartPole-v1": (3.0, 3.0, 0.3, 3.0)}
"""The states of a test are uniform in plus or minus these numbers."""


def random_states(env_id: str) -> Tensor:
    spread = torch.tensor(SPREAD[env_id])
    return (2.0 * torch.rand(N, len(spread), generator=torch.Generator().manual_seed(1)) - 1.0) * spread


@pytest.mark.parametrize("env_id", SPREAD)
def test_a_step_is_that_of_gymnasium(env_id: str) -> None:
    rules, env = TENSOR_ENVS[env_id](), gym.make(env_id, disable_env_checker=True)
    own: Any = env.unwrapped
    assert (rules.observation_space, rules.action_space) == (env.observation_space, env.action_space)
    assert rules.max_episode_steps == env.spec.max_episode_steps  # type: ignore[union-attr]  # an env by its id has one
    state = random_states(env_id)
    env.action_space.seed(1)
    action = torch.as_tensor(np.array([env.action_space.sample() for _ in range(N)]))
    following, reward, terminated = rules.transition(state, action, torch.zeros(N, 0))
    obs = rules.observe(following)
    for n in range(N):
        env.reset()
        own.state = state[n].numpy().astype(np.float64)
        expected_obs, expected_reward, expected_terminated, truncated, _ = own.step(action[n].numpy())
        np.testing.assert_allclose(following[n], own.state, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(obs[n], expected_obs, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(reward[n], expected_reward, rtol=1e-6, atol=1e-6)
        assert terminated[n].item() == expected_terminated
        assert not truncated
    assert (reward.dtype, terminated.dtype) == (torch.float32, torch.bool)


@pytest.mark.parametrize("env_id", SPREAD)
def test_states_of_the_test_end_some_episodes(env_id: str) -> None:
    rules = TENSOR_ENVS[env_id]()
    action = torch.zeros(N, dtype=torch.int64)
    terminated = rules.transition(random_states(env_id), action, torch.zeros(N, 0))[2]
    assert 20 < int(terminated.sum()) < N - 20


def test_cartpole_begins_near_the_middle() -> None:
    state = TENSOR_ENVS["CartPole-v1"]().first_state(torch.tensor([[0.0, 0.25, 0.5, 1.0]]))
    torch.testing.assert_close(state, torch.tensor([[-0.05, -0.025, 0.0, 0.05]]))
