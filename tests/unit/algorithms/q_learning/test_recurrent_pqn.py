"""RecurrentPQN's returns over a memory against steps one by one, and its actions."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.tree import map_tree
from tests.contract import test_all_algorithms as contract
from tests.unit.algorithms.q_learning.test_pqn import RETURNS, rollout

BOX, DISCRETE = gym.spaces.Box(-9.0, 9.0, (1,), np.float32), gym.spaces.Discrete(2, start=3)


def make() -> rl.RecurrentPQN:
    rl.seed(2)
    policy = rl.RecurrentQNetwork.for_spaces(BOX, DISCRETE, cell_size=4, hidden_sizes=(8,))
    return rl.RecurrentPQN(policy, rl.PQNParams(gamma=0.9))


@torch.no_grad()
def test_values_of_a_sequence_are_those_of_its_steps() -> None:
    algorithm = contract.make("recurrent_pqn")
    data, policy = contract.rollout(algorithm), algorithm.policy
    samples, state = algorithm.process(data), data.extra["state"][0]
    for t, begins in enumerate(data.begins):
        obs = map_tree(lambda x: x[t], data.obs)  # noqa: B023  # called at once
        state = policy.next_state(policy.normalize(obs), state * ~begins.unsqueeze(1))
        torch.testing.assert_close(samples.value[t], policy.q_values(state).amax(1))
    torch.testing.assert_close(algorithm.q_values(samples.flatten()).amax(1), samples.value.flatten())
    # The last step bootstraps from the best value of its successor, with the memory after it.
    best = policy.q_values(policy.next_state(policy.normalize(data.last_obs), state)).amax(1)
    torch.testing.assert_close(samples.return_[-1], data.reward[-1] + 0.99 * best)


@pytest.mark.parametrize("end", RETURNS)
def test_returns_are_those_of_pqn(end: str | None) -> None:
    """With values that are the observations: the memory is the obs, and actions have its value and half of it."""
    algorithm, data = make(), rollout(7.0, end)
    data.extra["state"] = torch.zeros(3, 1, 4)
    policy: Any = algorithm.policy
    policy.next_state = lambda obs, state, begins=None: obs.expand(-1, 4)
    policy.q_values = lambda state, mask=None: state[:, :2] * torch.tensor([1.0, 0.5])
    assert algorithm.process(data).return_.flatten().tolist() == pytest.approx(RETURNS[end])


def test_it_acts_by_the_best_value_and_explores() -> None:
    policy: Any = make().policy
    obs, state = torch.randn(2000, 1), policy.initial_state(2000)
    action, after = policy.act(obs, state)
    with torch.no_grad():
        assert torch.equal(after, policy.next_state(obs, state))
        assert torch.equal(action, policy.q_values(after).argmax(1) + 3)
    explored, _ = policy.act(obs, state, explore=True, generator=torch.Generator().manual_seed(1))
    assert 0.4 < float((explored != action).float().mean()) < 0.6  # epsilon is 1 at the start
