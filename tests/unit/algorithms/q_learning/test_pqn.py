"""PQN's lambda returns and loss by hand."""

from typing import Any

import gymnasium as gym
import pytest
import torch

import rltrainer as rl
from tests import batches
from tests.batches import processed
from tests.contract import test_masks as masks
from tests.fakes import counting_envs
from tests.unit.algorithms.q_learning.test_dqn import network


def make(policy: rl.QNetwork | None = None, **params: Any) -> rl.PQN:
    """Return a PQN whose action values are obs * (1, 0.5)."""
    return rl.PQN(policy or network(1.0, 0.5), rl.PQNParams(gamma=0.9, **params))


def rollout(first_obs: float = 7.0, end: str | None = None, reward: float = 0.0) -> rl.Rollout:
    """Return three steps of an env with rewards 1, 0, 2, and next observations 2, 1, 3; the second may be an end."""
    obs, ends, final = torch.tensor([first_obs, 2.0, 1.0]).view(3, 1, 1), {}, {}
    if end is not None:
        obs[2] = 50.0  # of the next episode, whose only step bootstraps from 3, too
        ends = {end: torch.tensor([[False], [True], [False]])}
        final = {"final_obs": torch.ones(1, 1), "final_index": torch.tensor([1])}
    rewards = torch.tensor([1.0, reward, 2.0]).unsqueeze(1)
    return batches.rollout(
        obs, torch.tensor([[0], [1], [1]]), rewards, last_obs=torch.full((1, 1), 3.0), **ends, **final
    )


RETURNS = {
    # 2 + .9 * 3 = 4.7; 0 + .9 * (.35 * 1 + .65 * 4.7) = 3.0645; 1 + .9 * (.35 * 2 + .65 * 3.0645) = 3.4227325.
    None: [3.4227325, 3.0645, 4.7],
    # 0 + .9 * 1 = .9; 1 + .9 * (.35 * 2 + .65 * .9) = 2.1565.
    "truncated": [2.1565, 0.9, 4.7],
    # 1 + .9 * .35 * 2 = 1.63.
    "terminated": [1.63, 0.0, 4.7],
}


@pytest.mark.parametrize("end", RETURNS)
@pytest.mark.parametrize("first_obs", [7.0, 0.0])  # the value of a step itself has no part in its return
def test_returns_by_hand(end: str | None, first_obs: float) -> None:
    samples = processed(make(), rollout(first_obs, end))
    assert samples.return_.flatten().tolist() == pytest.approx(RETURNS[end])
    # The value is the best action's, whichever was taken.
    assert samples.value.flatten().tolist() == [first_obs, 2.0, 1.0 if end is None else 50.0]
    torch.testing.assert_close(samples.advantage, samples.return_ - samples.value)


@pytest.mark.parametrize(("td_lambda", "first"), [(0.0, 1 + 0.9 * 2), (1.0, 1 + 0.81 * (0.9 * 3 + 2))])
def test_lambda_goes_from_one_reward_to_all(td_lambda: float, first: float) -> None:
    assert float(processed(make(td_lambda=td_lambda), rollout()).return_[0]) == pytest.approx(first)


def test_loss_by_hand_and_of_the_action_taken() -> None:
    algorithm = make(lr=0.1, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), max_grad_norm=None)
    batch = processed(algorithm, rollout(4.0)).flatten()
    batch.weight = torch.tensor([1.0, 1.0, 0.0])
    algorithm.policy.start = 5  # the first choice of a space may be any number
    batch.action += 5
    # Q(4, 0) = 4 and Q(2, 1) = 1: errors -.5772675 and 2.0645, squares .33323777 and 4.26216.
    found = algorithm.gradient_step(batch).floats()
    assert found == pytest.approx({"loss": (0.33323777 + 4.26216025) / 2, "q": 2.5})
    # Gradients by the weight of each action: -2 * error * obs / 2.
    expected = [1.0 + 0.1 * -0.5772675 * 4, 0.5 + 0.1 * 2.0645 * 2]
    assert algorithm.policy.critic[2].weight.flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("allows", [0, 1])
def test_masks_of_successors_are_obeyed_and_open_where_they_allow_nothing(allows: int) -> None:
    """At a time limit an env may allow nothing more, and the return bootstraps."""
    policy = rl.QNetwork(masks.OBS, gym.spaces.Discrete(3), hidden_sizes=())
    with torch.no_grad():
        policy.critic[2].weight.zero_()
        policy.critic[2].bias.copy_(torch.tensor([1.0, 9.0, 2.0]))  # no observation allows the second
    obs, last, final = (masks.obs_batch(*shape, generator=batches.generator()) for shape in ((2, 1), (1,), (1,)))
    final["action_mask"].fill_(allows)
    samples = processed(make(policy), batches.rollout(
        obs, torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 1), last_obs=last, final_obs=final,
        final_index=torch.tensor([0]), truncated=torch.tensor([[True], [False]]),
    ))  # fmt: skip
    assert samples.value.flatten().tolist() == [2.0, 2.0]
    assert samples.return_.flatten().tolist() == pytest.approx([0.9 * 9.0, 0.9 * 2.0])


def test_it_explores_by_its_schedule_and_learns_from_older_weights() -> None:
    algorithm = make()
    assert isinstance(algorithm.policy.exploration, rl.EpsilonGreedy)
    assert algorithm.policy.exploration.settings(0.25) == {"epsilon": pytest.approx(1.0 - 0.95 / 2)}
    assert algorithm.columns_if_stale == ()


def test_a_rollout_of_many_envs_is_short_and_of_few_long() -> None:
    few, many = (rl.PQN.recommended(counting_envs(num_envs)) for num_envs in (4, 128))
    assert few == {"collection_step_num_env_steps": 512, "batch_size": 128, "update_step_num_repetitions": 4}
    assert many == {"collection_step_num_env_steps": 4096, "batch_size": 128, "update_step_num_repetitions": 2}
