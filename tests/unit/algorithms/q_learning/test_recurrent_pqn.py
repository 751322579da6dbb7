"""RecurrentPQN's returns over a memory against steps one by one, and its minibatches of whole envs."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms.sequences import Sequences
from tests import batches
from tests.unit.algorithms.q_learning.test_pqn import RETURNS, rollout

BOX, DISCRETE = gym.spaces.Box(-9.0, 9.0, (1,), np.float32), gym.spaces.Discrete(2, start=3)


def make(**options: Any) -> rl.RecurrentPQN:
    rl.seed(2)
    policy = rl.RecurrentQNetwork.for_spaces(BOX, DISCRETE, cell_size=4, hidden_sizes=(8,), **options)
    return rl.RecurrentPQN(policy, rl.PQNParams(gamma=0.9))


def random_rollout(algorithm: Any, num_rows: int = 6, num_envs: int = 3) -> rl.Rollout:
    """Return steps with the memories that acting would have left, and an end at the third step of the second env."""
    g, policy = torch.Generator().manual_seed(4), algorithm.policy
    obs, final = torch.randn(num_rows, num_envs, 1, generator=g), torch.randn(1, 1, generator=g)
    terminated = torch.zeros(num_rows, num_envs, dtype=torch.bool)
    terminated[2, 1] = True
    state, states = torch.randn(num_envs, policy.memory.cell.memory_size, generator=g).tanh(), []
    for t in range(num_rows):
        states.append(state)
        with torch.no_grad():
            state = policy.next_state(obs[t], state) * ~terminated[t].unsqueeze(-1)
    return batches.rollout(
        obs, torch.randint(3, 5, (num_rows, num_envs), generator=g), torch.randn(num_rows, num_envs, generator=g),
        terminated=terminated, last_obs=torch.randn(num_envs, 1, generator=g), final_obs=final,
        final_index=torch.tensor([2 * num_envs + 1]), extra={"state": torch.stack(states)},
    )  # fmt: skip


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_values_of_a_sequence_are_those_of_its_steps(cell: str) -> None:
    algorithm = make(cell=cell)
    data, policy = random_rollout(algorithm), algorithm.policy
    with torch.no_grad():
        samples = algorithm.process(data)
        for t in range(6):
            value = policy.q_values(policy.next_state(data.obs[t], data.extra["state"][t])).amax(1)
            torch.testing.assert_close(samples.value[t], value)
        q = algorithm.q_values(samples.flatten())
    assert q.shape == (18, 2)
    torch.testing.assert_close(q.amax(1), samples.value.flatten())
    # The last step bootstraps from the best value of its successor, with the memory after it.
    with torch.no_grad():
        state = policy.next_state(data.obs[5], data.extra["state"][5])
        best = policy.q_values(policy.next_state(data.last_obs, state)).amax(1)
    torch.testing.assert_close(samples.return_[5], data.reward[5] + 0.9 * best)
    assert float(samples.return_[2, 1]) == pytest.approx(float(data.reward[2, 1]))


@pytest.mark.parametrize("end", RETURNS)
def test_returns_are_those_of_pqn(end: str | None) -> None:
    """With values that are the observations: the memory is the obs, and actions have its value and half of it."""
    algorithm, data = make(), rollout(7.0, end)
    data.extra["state"] = torch.zeros(3, 1, 4)
    policy: Any = algorithm.policy
    policy.next_state = lambda obs, state, begins=None: obs.expand(-1, 4)
    policy.q_values = lambda state, mask=None: state[:, :2] * torch.tensor([1.0, 0.5])
    assert algorithm.process(data).return_.flatten().tolist() == pytest.approx(RETURNS[end])


def test_minibatches_are_whole_envs_and_all_is_trained() -> None:
    algorithm = make()
    with torch.no_grad():
        samples = algorithm.process(random_rollout(algorithm))
    found = list(algorithm.batches(samples, 12, 1))  # three envs of six steps in two minibatches
    assert all(isinstance(batch, Sequences) and len(batch.weight) == 12 for batch in found)
    assert sum(float(batch.weight.sum()) for batch in found) == 18
    before = {name: p.detach().clone() for name, p in algorithm.policy.named_parameters()}
    algorithm.update(random_rollout(algorithm), 12, 2)
    assert not [name for name, p in algorithm.policy.named_parameters() if torch.equal(before[name], p)]


def test_it_acts_by_the_best_value_and_explores() -> None:
    policy: Any = make().policy
    obs, state = torch.randn(2000, 1), policy.initial_state(2000)
    action, after = policy.act(obs, state)
    with torch.no_grad():
        assert torch.equal(after, policy.next_state(obs, state))
        assert torch.equal(action, policy.q_values(after).argmax(1) + 3)
    explored, _ = policy.act(obs, state, explore=True, generator=torch.Generator().manual_seed(1))
    assert 0.4 < float((explored != action).float().mean()) < 0.6  # epsilon is 1 at the start
