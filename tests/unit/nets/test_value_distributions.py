"""Networks that know the distribution of returns act by its mean."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltrainer.errors import ParamsError, SpaceError
from rltrainer.nets import CategoricalQNetwork, QuantileQNetwork

OBS = spaces.Box(-1.0, 1.0, (1,), np.float32)
BOTH = [(CategoricalQNetwork, "num_atoms"), (QuantileQNetwork, "num_quantiles")]


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
def test_the_values_of_another_critics_output_are_asked_for_in_the_same_way(
    policy_class: Any, option: str, dueling: bool
) -> None:
    policy = policy_class(OBS, spaces.Discrete(3), hidden_sizes=(8,), dueling=dueling, **{option: 5})
    obs = torch.rand(4, 1)
    output = policy.critic(obs)
    assert output.shape == (4, 3, 5)
    assert torch.equal(policy.q_values(obs, output), policy.q_values(obs))
    assert policy.q_values(obs).shape == (4, 3)


@pytest.mark.parametrize(("policy_class", "option"), BOTH)
def test_a_single_output_is_no_distribution(policy_class: Any, option: str) -> None:
    with pytest.raises(ParamsError) as caught:
        policy_class(OBS, spaces.Discrete(3), **{option: 1})
    assert str(caught.value) == f"{policy_class.__name__}.{option}: must be an integer of at least 2; got 1 (int)"


@pytest.mark.parametrize(("v_min", "v_max"), [(1.0, 1.0), (2.0, 1.0)])
def test_a_support_must_go_up(v_min: float, v_max: float) -> None:
    with pytest.raises(ParamsError) as caught:
        CategoricalQNetwork(OBS, spaces.Discrete(3), v_min=v_min, v_max=v_max)
    assert str(caught.value) == f"CategoricalQNetwork.v_max: must be greater than v_min ({v_min}); got 1.0 (float)"


@pytest.mark.parametrize("name", ["v_min", "v_max"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0", None])
def test_a_support_is_of_finite_numbers(name: str, value: Any) -> None:
    with pytest.raises(ParamsError, match=f"CategoricalQNetwork.{name}: must be a finite number; got "):
        CategoricalQNetwork(OBS, spaces.Discrete(3), **{name: value})


@pytest.mark.parametrize(("policy_class", "option"), BOTH)
def test_actions_must_be_choices(policy_class: Any, option: str) -> None:
    with pytest.raises(SpaceError, match=f"{policy_class.__name__}.action_space: must be Discrete"):
        policy_class(OBS, OBS)


def test_a_state_brings_its_own_support() -> None:
    wide = CategoricalQNetwork(OBS, spaces.Discrete(3), v_min=0.0, v_max=100.0)
    other = CategoricalQNetwork(OBS, spaces.Discrete(3))
    other.load_state_dict(wide.state_dict())
    assert torch.equal(other.support, wide.support)
    obs = torch.rand(4, 1)
    assert torch.equal(other.q_values(obs), wide.q_values(obs))
