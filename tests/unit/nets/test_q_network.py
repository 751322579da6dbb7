"""Action values of discrete choices, and networks that know the distribution of returns and act by its mean."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltrainer.nets import CategoricalQNetwork, QNetwork, QuantileQNetwork

OBS = spaces.Box(-1.0, 1.0, (1,), np.float32)
BOTH: list[tuple[Any, str]] = [(CategoricalQNetwork, "num_atoms"), (QuantileQNetwork, "num_quantiles")]


def test_the_choice_of_the_highest_value_is_taken_from_the_spaces_start() -> None:
    policy = QNetwork(OBS, spaces.Discrete(3, start=-1), hidden_sizes=())
    with torch.no_grad():
        policy.critic[2].weight.copy_(torch.tensor([[1.0], [0.0], [-1.0]]))
        policy.critic[2].bias.copy_(torch.tensor([0.0, 0.5, 0.0]))
    # Values (x, 0.5, -x): the first for x = 1, the middle for x = 0, the last for x = -1.
    action = policy.act(torch.tensor([[1.0], [0.0], [-1.0]]))
    assert action.tolist() == [-1, 0, 1]
    assert policy.unscale(action).tolist() == [0, 1, 2]


def with_outputs(policy: Any, outputs: list[list[float]]) -> Any:
    """Return the policy, whose critic returns these [A, K] for any observation."""
    with torch.no_grad():
        policy.critic[2].weight.zero_()
        policy.critic[2].bias.copy_(torch.tensor(outputs).flatten())
    return policy


def test_categorical_values_by_hand() -> None:
    policy = CategoricalQNetwork(OBS, spaces.Discrete(2, start=5), hidden_sizes=(), num_atoms=3, v_min=-1.0, v_max=3.0)
    assert policy.support.tolist() == [-1.0, 1.0, 3.0]
    # Odds 1 : 1 : 1 of -1, 1, 3 have the mean 1; odds 1 : 1 : 2 have (-1 + 1 + 6) / 4 = 1.5.
    policy = with_outputs(policy, [[0.0, 0.0, 0.0], [0.0, 0.0, float(np.log(2.0))]])
    assert policy.q_values(torch.zeros(1, 1))[0].tolist() == pytest.approx([1.0, 1.5])
    assert policy.act(torch.zeros(2, 1)).tolist() == [6, 6]


def test_quantile_values_are_their_means() -> None:
    policy = QuantileQNetwork(OBS, spaces.Discrete(2), hidden_sizes=(), num_quantiles=4)
    policy = with_outputs(policy, [[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 8.0]])
    assert policy.critic(torch.zeros(1, 1)).shape == (1, 2, 4)
    assert policy.q_values(torch.zeros(1, 1)).tolist() == [[2.5, 2.0]]
    assert policy.act(torch.zeros(1, 1)).tolist() == [0]


@pytest.mark.parametrize(("policy_class", "option"), BOTH)
@pytest.mark.parametrize("dueling", [False, True])
def test_values_of_another_critics_output(policy_class: Any, option: str, dueling: bool) -> None:
    policy = policy_class(OBS, spaces.Discrete(3), hidden_sizes=(8,), dueling=dueling, **{option: 5})
    obs = torch.rand(4, 1)
    output = policy.critic(obs)
    assert output.shape == (4, 3, 5)
    assert torch.equal(policy.q_values(obs, output), policy.q_values(obs))
    assert policy.q_values(obs).shape == (4, 3)


def test_a_state_brings_its_own_support() -> None:
    wide = CategoricalQNetwork(OBS, spaces.Discrete(3), v_min=0.0, v_max=100.0)
    other = CategoricalQNetwork(OBS, spaces.Discrete(3))
    other.load_state_dict(wide.state_dict())
    assert torch.equal(other.support, wide.support)
    assert torch.equal(other.q_values(torch.ones(4, 1)), wide.q_values(torch.ones(4, 1)))
