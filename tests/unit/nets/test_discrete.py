"""Critics that value every choice."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltrainer.errors import ParamsError, SpaceError
from rltrainer.nets import DiscreteActorCritic, NetParams

OBS = spaces.Box(-1.0, 1.0, (1,), np.float32)


def with_outputs(policy: DiscreteActorCritic, probability: list[float], q: list[list[float]]) -> DiscreteActorCritic:
    """Return the policy, which gives actions these probabilities [A] and values [E, A] whatever is observed."""
    with torch.no_grad():
        policy.actor[2].linear.weight.zero_()
        policy.actor[2].linear.bias.copy_(torch.tensor(probability).log())
        last: Any = policy.critic[1].layers[-1]
        last.weight.zero_()
        last.bias.copy_(torch.tensor(q).unsqueeze(1))
    return policy


def test_values_of_all_choices() -> None:
    policy = DiscreteActorCritic(OBS, spaces.Discrete(3, start=5), hidden_sizes=())
    policy = with_outputs(policy, [0.5, 0.3, 0.2], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    obs = torch.zeros(2, 1)
    assert policy.critic(obs).tolist() == [[[1.0, 2.0, 3.0]] * 2, [[4.0, 5.0, 6.0]] * 2]
    assert policy.act(obs).tolist() == [5, 5]
    assert policy.distribution(obs).log_probs.exp()[0].tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_the_critics_may_be_others_than_the_actor() -> None:
    policy = DiscreteActorCritic(OBS, spaces.Discrete(2), critic_net=NetParams(hidden_sizes=(8,)))
    assert [p.shape[-1] for p in policy.critic.parameters()] == [8, 8, 2, 2]
    assert policy.actor[1].out_features == 256


@pytest.mark.parametrize("space", [OBS, spaces.Discrete(1), spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2)])
def test_there_must_be_choices(space: Any) -> None:
    text = "DiscreteActorCritic.action_space: must be Discrete, with at least two choices; got "
    with pytest.raises(SpaceError, match=text):
        DiscreteActorCritic(OBS, space)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_there_must_be_critics(value: Any) -> None:
    with pytest.raises(ParamsError, match="DiscreteActorCritic.num_critics: must be a positive integer; got "):
        DiscreteActorCritic(OBS, spaces.Discrete(2), num_critics=value)
