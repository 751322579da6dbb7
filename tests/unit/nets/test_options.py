"""Errors of a policy's constructor, `for_envs` and `for_spaces`."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

import rltrainer as rl
from rltrainer.errors import ParamsError
from tests.fakes import counting_envs

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
DISCRETE = spaces.Discrete(2)
POLICIES: dict[Any, Any] = {
    rl.Actor: DISCRETE,
    rl.ActorCritic: DISCRETE,
    rl.QNetwork: DISCRETE,
    rl.DeterministicActorCritic: BOX,
    rl.SquashedActorCritic: BOX,
    rl.GaussianActorCritic: BOX,
    rl.FlowActorCritic: BOX,
}
every_policy = pytest.mark.parametrize("cls", POLICIES, ids=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", [*POLICIES, rl.CategoricalQNetwork, rl.QuantileQNetwork, rl.DiscreteActorCritic])
def test_a_misspelt_option_names_the_nearest(cls: Any) -> None:
    envs = counting_envs(action_space=POLICIES.get(cls, DISCRETE))
    assert cls.for_envs(envs, hidden_sizes=(3,), normalize_obs=True).obs_normalizer is not None
    for make, args in ((cls.for_envs, (envs,)), (cls.for_spaces, (OBS, DISCRETE)), (cls, (OBS, DISCRETE))):
        with pytest.raises(ParamsError) as caught:
            make(*args, hiden_sizes=(3,))
        assert str(caught.value) == f"{cls.__name__}: unknown argument 'hiden_sizes'. Did you mean 'hidden_sizes'?"
        assert isinstance(caught.value, TypeError)


def test_a_constructor_of_the_users_may_take_any_option() -> None:
    class OwnPolicy(rl.ActorCritic):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)

    assert type(OwnPolicy.for_envs(counting_envs(), hidden_sizes=(3,))) is OwnPolicy


@every_policy
def test_hidden_sizes(cls: Any) -> None:
    policy = cls(OBS, POLICIES[cls], hidden_sizes=[np.int64(3), np.int32(2)])
    layers = [type(module.in_features) for module in policy.modules() if isinstance(module, nn.Linear)]
    assert set(layers) == {int}
    for value in (3, "64", [0], [64, -1], [1.5], [True], {64}):
        text = f"^{cls.__name__}.hidden_sizes: must be a sequence of positive integers or None; got "
        with pytest.raises(ParamsError, match=text):
            cls(OBS, POLICIES[cls], hidden_sizes=value)
