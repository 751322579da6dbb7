"""Every field of the params of algorithms and updates against every kind of wrong value."""

import dataclasses
import math
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError

BAD_VALUES = [-1, 0, math.inf, math.nan, "", None, True, []]
CLASSES = [
    rl.PPOParams, rl.A2CParams, rl.IMPALAParams, rl.TRPOParams, rl.REINFORCEParams,
    rl.DQNParams, rl.TD3Params, rl.SACParams, rl.TD3BCParams, rl.IQLParams, rl.BCParams,
    rl.DiscreteCQLParams,
    rl.DDPGParams, rl.TQCParams, rl.REDQParams, rl.CQLParams, rl.C51Params, rl.DiscreteSACParams, rl.QRDQNParams,
]  # fmt: skip
ACCEPTED: dict[str, list[Any]] = {
    "gamma": [0], "gae_lambda": [0], "value_coef": [0], "entropy_coef": [0], "epsilon": [0], "tau": [0],
    "exploration_noise": [0], "target_noise": [0], "target_noise_clip": [0], "expectile": [0],
    "target_entropy": [-1, 0, None], "normalize_advantage": [True],
    "damping": [0], "line_search_shrink": [0], "standardize_return": [True],
    "learn_temperature": [True], "double": [True],
    "max_grad_norm": [None], "optimizer": [None], "value_clip": [None], "target_kl": [None],
    "actor_lr": [None], "critic_lr": [None], "value_lr": [None], "obs_std_eps": [0], "num_dropped": [0],
    "huber_delta": [None], "max_grad_value": [None], "grad_norm_type": [math.inf], "balance_grad_norms": [True],
    "amp": [None], "tf32": [None, True],
}  # fmt: skip
CASES = [
    (cls, field.name, value)
    for cls in [*CLASSES, rl.UpdateParams, rl.PrecisionParams]
    for field in dataclasses.fields(cls)
    for value in BAD_VALUES
    if not any(value is ok or (value == ok and type(value) is type(ok)) for ok in ACCEPTED.get(field.name, []))
]


@pytest.mark.parametrize(("cls", "field", "value"), CASES)
def test_a_bad_value_is_refused_by_name(cls: type[Any], field: str, value: Any) -> None:
    with pytest.raises(ParamsError) as caught:
        cls(**{field: value})
    assert str(caught.value).startswith(f"{cls.__name__}.{field}: must be ")
    assert f"; got {value!r} ({type(value).__name__})" in str(caught.value)


@pytest.mark.parametrize("cls", CLASSES)
def test_the_defaults_round_trip(cls: type[Any]) -> None:
    params = cls(lr=1e-3)
    live = {f.name: v for f in dataclasses.fields(cls) if callable(v := getattr(params, f.name))}
    assert cls.from_json(params.to_json(), **live) == params


@pytest.mark.parametrize("cls", CLASSES)
def test_json_of_the_defaults_needs_nothing_more(cls: type[Any]) -> None:
    assert cls.from_json(cls().to_json()) == cls()


@pytest.mark.parametrize("name", ["gamma", "n_step"])
def test_behaviour_cloning_refuses_what_it_would_not_use(name: str) -> None:
    with pytest.raises(ParamsError, match=f"BCParams.{name}: must be left out; got 1"):
        rl.BCParams(**{name: 1 if name == "gamma" else 10})
