"""Errors of a policy's constructor, `for_envs` and `for_spaces`."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from torch import nn

import rltrainer as rl
from rltrainer.errors import ParamsError, SpaceError
from tests.fakes import CountingEnv, counting_envs

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
}
WITH_NOISE = [rl.Actor, rl.ActorCritic, rl.SquashedActorCritic]
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


def test_other_wrong_arguments() -> None:
    envs = counting_envs()
    with pytest.raises(ParamsError, match="^ActorCritic: unknown argument 'net_arch'. Did you mean 'hidden_siz"):
        rl.ActorCritic.for_envs(envs, net_arch=[64, 64])
    with pytest.raises(ParamsError, match="^ActorCritic: too many positional arguments. Give each argument by"):
        rl.ActorCritic.for_envs(envs, None, (64, 64))
    with pytest.raises(ParamsError, match="^Policy: is abstract. Build one of its subclasses"):
        rl.Policy.for_envs(envs)


def test_a_constructor_of_the_users_may_take_any_option() -> None:
    class OwnPolicy(rl.ActorCritic):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)

    assert type(OwnPolicy.for_envs(counting_envs(), hidden_sizes=(3,))) is OwnPolicy


@pytest.mark.parametrize(
    ("envs", "found", "hint"),
    [
        ("CartPole-v1", "'CartPole-v1' (str)", "Make one with rl.make_vec('CartPole-v1', num_envs=1)."),
        (CountingEnv(), ".* (CountingEnv)", "It is a single env: make several with rl.make_vec(env_id_or_factory, nu"),
        (None, "None (NoneType)", "Make one with rl.make_vec(env_id, num_envs=1)."),
        (
            gym.vector.SyncVectorEnv,
            ".*sync_vector_env.SyncVectorEnv'> (type)",
            "Make one with rl.make_vec(env_id, num_",
        ),
    ],
)
def test_values_that_are_no_vector_env(envs: Any, found: str, hint: str) -> None:
    pattern = re.escape(f"ActorCritic.for_envs.envs: must be a gymnasium VectorEnv; got {found}. {hint}")
    with pytest.raises(ParamsError, match=f"^{pattern}".replace(r"\.\*", ".*")):
        rl.ActorCritic.for_envs(envs)


@every_policy
def test_hidden_sizes(cls: Any) -> None:
    policy = cls(OBS, POLICIES[cls], hidden_sizes=[np.int64(3), np.int32(2)])
    layers = [type(module.in_features) for module in policy.modules() if isinstance(module, nn.Linear)]
    assert set(layers) == {int}
    for value in (3, "64", [0], [64, -1], [1.5], [True], {64}):
        text = f"^{cls.__name__}.hidden_sizes: must be a sequence of positive integers or None; got "
        with pytest.raises(ParamsError, match=text):
            cls(OBS, POLICIES[cls], hidden_sizes=value)


@pytest.mark.parametrize(
    ("cls", "option", "value", "rule"),
    [
        (rl.ActorCritic, "net", (64, 64), "must be a NetParams or None"),
        (rl.ActorCritic, "critic_net", {"norm": "layer"}, "must be a NetParams or None"),
        (rl.SquashedActorCritic, "critic_net", (64, 64), "must be a NetParams or None"),
        (rl.ActorCritic, "orthogonal_init", 1, "must be True or False"),
        (rl.ActorCritic, "log_std_init", "0", "must be a finite number"),
        (rl.QNetwork, "num_outputs", 0, "must be a positive integer"),
        (rl.SquashedActorCritic, "num_outputs", 0, "must be a positive integer"),
        (rl.ActorCritic, "share_encoder", 1, "must be True or False"),
        (rl.ActorCritic, "normalize_reward", None, "must be True or False"),
        (rl.SquashedActorCritic, "normalize_reward", None, "must be True or False"),
        (rl.QNetwork, "normalize_reward", 1, "must be True or False"),
        (rl.ActorCritic, "normalize_obs", "yes", "must be True or False"),
        (rl.QNetwork, "dueling", 1, "must be True or False"),
        (rl.SquashedActorCritic, "num_critics", 0, "must be a positive integer"),
        (rl.GaussianActorCritic, "num_critics", 1.0, "must be a positive integer"),
        (rl.DiscreteActorCritic, "num_critics", 0, "must be a positive integer"),
        (rl.RecurrentActorCritic, "cell", "rnn", "must be one of 'gru', 'lstm'"),
        (rl.RecurrentActorCritic, "cell_size", 0, "must be a positive integer"),
        (rl.RecurrentActorCritic, "share_cell", 1, "must be True or False"),
        (rl.RecurrentActorCritic, "normalize_reward", "yes", "must be True or False"),
        (rl.CategoricalQNetwork, "num_atoms", 1, "must be an integer of at least 2"),
        (rl.CategoricalQNetwork, "v_min", float("nan"), "must be a finite number"),
        (rl.CategoricalQNetwork, "v_max", None, "must be a finite number"),
        (rl.CategoricalQNetwork, "v_max", -10.0, r"must be greater than v_min \(-10.0\)"),
        (rl.QuantileQNetwork, "num_quantiles", 1, "must be an integer of at least 2"),
        *((cls, "use_sde", 1, "must be True or False") for cls in WITH_NOISE),
        *((cls, "sde_sample_interval", 0, "must be a positive integer or None") for cls in WITH_NOISE),
        *((cls, "sde_sample_interval", 4, "must be None without use_sde=True") for cls in WITH_NOISE),
        (rl.ActorCritic, "use_sde", True, r"must be False where actions are no Box, but Discrete\(2\)"),
        (rl.SquashedActorCritic, "log_std_init", -2.0, "is where the noise of use_sde=True starts"),
    ],
)
def test_other_values(cls: Any, option: str, value: Any, rule: str) -> None:
    with pytest.raises(ParamsError, match=f"^{cls.__name__}.{option}: {rule}; got "):
        cls(OBS, POLICIES.get(cls, DISCRETE), **{option: value})


NOT_DISCRETE = [OBS, spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2)]


@pytest.mark.parametrize(
    ("cls", "space", "rule"),
    [
        *((rl.DiscreteActorCritic, x, ", with at least two choices") for x in (*NOT_DISCRETE, spaces.Discrete(1))),
        (rl.CategoricalQNetwork, OBS, ""),
        (rl.QuantileQNetwork, OBS, ""),
    ],
)
def test_actions_must_be_choices(cls: Any, space: Any, rule: str) -> None:
    with pytest.raises(SpaceError, match=f"^{cls.__name__}.action_space: must be Discrete{rule}; got "):
        cls(OBS, space)
    with pytest.raises(SpaceError, match=r"^RecurrentActorCritic.action_space: must be .* of one axis; got "):
        rl.RecurrentActorCritic(OBS, spaces.Box(-1.0, 1.0, (2, 2)))


@every_policy
@pytest.mark.parametrize("space", [None, "Box", spaces.Box, (3,)])
def test_what_is_no_space(cls: Any, space: Any) -> None:
    with pytest.raises(SpaceError, match=f"^{cls.__name__}.observation_space: must be a gymnasium space; got "):
        cls.for_spaces(space, POLICIES[cls])
    with pytest.raises(SpaceError, match=f"^{cls.__name__}.action_space: must be a gymnasium space; got "):
        cls.for_spaces(OBS, space)


@pytest.mark.parametrize("cls", [cls for cls in POLICIES if cls is not rl.QNetwork], ids=lambda cls: cls.__name__)
def test_a_box_of_integers_is_no_action_space_of_networks(cls: Any) -> None:
    with pytest.raises(SpaceError) as caught:
        cls(OBS, spaces.Box(0, 10, (1,), np.int64))
    assert str(caught.value) == (
        f"{cls.__name__}.action_space: must hold floats if it is a Box; got Box(0, 10, (1,), int64) (Box). "
        "Give the env a Discrete or MultiDiscrete space in a wrapper, or floats that the wrapper rounds."
    )
