"""Each env of tensors equals gymnasium's own, step by step, under the same states and actions."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rltrainer.envs.tensors import TENSOR_ENVS

N = 300
SPREAD = {
    "CartPole-v1": (3.0, 3.0, 0.3, 3.0),
    "Pendulum-v1": (math.pi, 8.0),
    "Acrobot-v1": (math.pi, math.pi, 4 * math.pi, 9 * math.pi),
    "MountainCar-v0": (0.9, 0.07),
    "MountainCarContinuous-v0": (0.9, 0.07),
}
"""The states of a test are uniform in plus or minus these numbers, around `CENTER`."""
CENTER = {"MountainCar-v0": (-0.3, 0.0), "MountainCarContinuous-v0": (-0.3, 0.0)}
NUM_ANGLES = {"Pendulum-v1": 1, "Acrobot-v1": 2}
"""How many of the first numbers of a state are angles, which are equal if they differ by whole turns."""


def random_states(env_id: str) -> Tensor:
    spread = torch.tensor(SPREAD[env_id])
    uniform = torch.rand(N, len(spread), generator=torch.Generator().manual_seed(1))
    return (2.0 * uniform - 1.0) * spread + torch.tensor(CENTER.get(env_id, 0.0))


def random_actions(space: gym.Space[Any]) -> Tensor:
    space.seed(1)
    return torch.as_tensor(np.array([space.sample() for _ in range(N)]))


def assert_close(found: Tensor, expected: Any, num_angles: int = 0) -> None:
    expected = np.atleast_1d(expected).astype(np.float64)
    difference = found.double().numpy() - expected
    difference[:num_angles] = (difference[:num_angles] + math.pi) % (2 * math.pi) - math.pi
    assert np.abs(difference / np.maximum(np.abs(expected), 1.0)).max() <= 1e-6


@pytest.mark.parametrize("env_id", SPREAD)
def test_a_step_is_that_of_gymnasium(env_id: str) -> None:
    rules, env = TENSOR_ENVS[env_id](), gym.make(env_id, disable_env_checker=True)
    own: Any = env.unwrapped
    assert (rules.observation_space, rules.action_space) == (env.observation_space, env.action_space)
    assert rules.max_episode_steps == env.spec.max_episode_steps  # type: ignore[union-attr]  # an env by its id has one
    state, action = random_states(env_id), random_actions(env.action_space)
    following, reward, terminated = rules.transition(state, action, torch.zeros(N, 0))
    obs = rules.observe(following)
    for n in range(N):
        env.reset()
        own.state = state[n].numpy().astype(np.float64)
        expected_obs, expected_reward, expected_terminated, truncated, _ = own.step(action[n].numpy())
        assert_close(following[n], own.state, NUM_ANGLES.get(env_id, 0))
        assert_close(obs[n], expected_obs)
        assert_close(reward[n], expected_reward)
        assert terminated[n].item() == expected_terminated
        assert not truncated
    assert (following.dtype, obs.dtype, reward.dtype, terminated.dtype) == (*[torch.float32] * 3, torch.bool)
    # Of both kinds there are enough for the comparison to mean something.
    assert int(terminated.sum()) in (range(10, N - 10) if env_id != "Pendulum-v1" else [0])


@pytest.mark.parametrize("env_id", SPREAD)
def test_an_episode_is_that_of_gymnasium(env_id: str) -> None:
    rules, env = TENSOR_ENVS[env_id](), gym.make(env_id, disable_env_checker=True)
    own: Any = env.unwrapped
    state = rules.first_state(torch.rand(1, rules.num_first_uniforms, generator=torch.Generator().manual_seed(2)))
    env.reset()
    own.state = state[0].numpy().astype(np.float64)
    for action in random_actions(env.action_space)[:10]:
        state, reward, terminated = rules.transition(state, action[None], torch.zeros(1, 0))
        obs, expected_reward, *_ = own.step(action.numpy())
        # The rounding errors of float32 add up over the steps.
        np.testing.assert_allclose(rules.observe(state)[0], obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(reward[0], expected_reward, rtol=1e-4)
        assert not terminated


FIRST_STATES = {
    "CartPole-v1": ([-0.05] * 4, [0.05] * 4),
    "Pendulum-v1": ([-math.pi, -1.0], [math.pi, 1.0]),
    "Acrobot-v1": ([-0.1] * 4, [0.1] * 4),
    "MountainCar-v0": ([-0.6, 0.0], [-0.4, 0.0]),
    "MountainCarContinuous-v0": ([-0.6, 0.0], [-0.4, 0.0]),
}
"""The bounds of gymnasium's first states, each number of which is uniform between them."""


@pytest.mark.parametrize("env_id", SPREAD)
def test_first_states_are_distributed_as_those_of_gymnasium(env_id: str) -> None:
    rules, env = TENSOR_ENVS[env_id](), gym.make(env_id, disable_env_checker=True)
    low, high = map(np.array, FIRST_STATES[env_id])
    own: Any = env.unwrapped
    env.reset(seed=1)
    found = np.array([own.state for _ in range(200) if env.reset()])
    assert (found >= low - 1e-8).all()
    assert (found <= high + 1e-8).all()
    np.testing.assert_allclose(found.mean(0), (low + high) / 2, atol=0.06 * (high - low).max())
    for share in (0.0, 0.25, 0.5, 1.0):
        state = rules.first_state(torch.full((1, rules.num_first_uniforms), share))
        np.testing.assert_allclose(state[0], low + share * (high - low), atol=1e-6)


def test_a_pendulum_may_have_turned() -> None:
    rules = TENSOR_ENVS["Pendulum-v1"]()
    state = torch.tensor([[0.5, 1.0], [0.5 + 2 * math.pi, 1.0], [0.5 - 4 * math.pi, 1.0]])
    following, reward, _ = rules.transition(state, torch.zeros(3, 1), torch.zeros(3, 0))
    torch.testing.assert_close(reward, torch.full((3,), -0.35))  # 0.5^2 + 0.1 * 1^2
    # 1 + 0.05 * 15 sin(0.5) = 1.359569, and 0.5 + 0.05 * 1.359569 = 0.567978
    torch.testing.assert_close(following, torch.tensor([[0.567978, 1.359569]] * 3), rtol=2e-6, atol=0.0)


def test_an_action_beyond_the_bounds_is_clipped() -> None:
    pendulum, car = TENSOR_ENVS["Pendulum-v1"](), TENSOR_ENVS["MountainCarContinuous-v0"]()
    state, uniform = torch.zeros(2, 2), torch.zeros(2, 0)
    following, reward, _ = pendulum.transition(state, torch.tensor([[2.0], [5.0]]), uniform)
    assert torch.equal(following[0], following[1])
    assert torch.equal(reward[0], reward[1])
    following, reward, _ = car.transition(state, torch.tensor([[1.0], [3.0]]), uniform)
    assert torch.equal(following[0], following[1])
    torch.testing.assert_close(reward, torch.tensor([-0.1, -0.9]))  # as gymnasium has it
