"""DQN's loss by hand, and what a double one changes."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms.q_learning.dqn import chosen
from tests import batches

OBS = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
ACTIONS = gym.spaces.Discrete(2)


def network(*weight: float) -> rl.QNetwork:
    """Return action values obs * weight."""
    policy = rl.QNetwork(OBS, ACTIONS, hidden_sizes=())
    with torch.no_grad():
        policy.critic[2].weight.copy_(torch.tensor(weight).unsqueeze(1))
        policy.critic[2].bias.zero_()
    return policy


def transitions(**changes: Any) -> rl.Transitions:
    fields: dict[str, Any] = {
        "obs": torch.tensor([[1.0], [2.0]]), "action": torch.tensor([0, 1]), "reward": torch.tensor([1.0, 3.0]),
        "next_obs": torch.ones(2, 1), "terminated": torch.tensor([False, True]), "discount": torch.tensor([0.5, 0.0]),
    }  # fmt: skip
    return batches.transitions(**(fields | changes))


def with_another_target(double: bool, **fields: Any) -> rl.DQN:
    """Return a DQN of which the online network prefers the first action, the target network the second."""
    algorithm = rl.DQN(network(3.0, 1.0), rl.DQNParams(double=double, **fields))
    with torch.no_grad():
        algorithm.target_critic.network[2].weight.copy_(torch.tensor([[4.0], [6.0]]))
    return algorithm


def test_chosen_picks_along_the_axis_of_actions() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    action = torch.tensor([1, 0])
    assert chosen(values, action).tolist() == [2.0, 3.0]
    atoms = torch.stack([values, values + 10], dim=2)  # [B, A, K]
    assert chosen(atoms, action).tolist() == [[2.0, 12.0], [3.0, 13.0]]


def test_loss_by_hand() -> None:
    loss, td_error = with_another_target(double=False).loss(transitions(), None)
    # Targets 1 + .5 * max(4, 6) = 4 and 3; Q(1, 0) = 3 and Q(2, 1) = 2: both 1 too low, where Huber's is .5.
    assert td_error.tolist() == [1.0, 1.0]
    assert loss.tolist() == [0.5, 0.5]
    assert loss.requires_grad


@pytest.mark.parametrize(
    ("delta", "losses"),
    # Errors 3.5 - 3 = .5 and 5 - 2 = 3. Huber's are .5 * .5^2, and delta * (3 - delta / 2) beyond delta.
    [(1.0, [0.125, 2.5]), (2.0, [0.125, 4.0]), (0.25, [0.09375, 0.71875]), (None, [0.25, 9.0])],
)
def test_the_loss_of_an_error_is_hubers_or_its_square(delta: float | None, losses: list[float]) -> None:
    batch = transitions(reward=torch.tensor([0.5, 5.0]))
    algorithm = with_another_target(double=False, huber_delta=delta)
    loss, td_error = algorithm.loss(batch, None)
    assert td_error.tolist() == [0.5, 3.0]
    assert loss.tolist() == losses
    # The means of w x, with w = [1, .5]: half of the first loss and a quarter of the second.
    found = algorithm.gradient_step(transitions(reward=batch.reward, weight=torch.tensor([1.0, 0.5]))).floats()["loss"]
    assert found == pytest.approx(losses[0] / 2 + losses[1] / 4)


def test_a_double_one_asks_the_target_network_about_the_online_networks_choice() -> None:
    loss, td_error = with_another_target(double=True).loss(transitions(), None)
    # The online network takes the first action, which the target network gives 4: 1 + .5 * 4 = 3, Q = 3.
    assert td_error.tolist() == [0.0, 1.0]
    assert loss.tolist() == [0.0, 0.5]


def test_double_dqn_is_a_dqn_with_the_flag_whatever_its_params_say() -> None:
    assert rl.DoubleDQN(network(1.0, 2.0)).params == rl.DQNParams(double=True)
    assert rl.DoubleDQN(network(1.0, 2.0), rl.DQNParams(lr=0.1)).params == rl.DQNParams(lr=0.1, double=True)
    assert not rl.DQN(network(1.0, 2.0)).params.double
