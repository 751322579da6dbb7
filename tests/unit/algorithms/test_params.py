"""Every field of the params of algorithms and updates against every kind of wrong value."""

import dataclasses
import json
import math
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError

BAD_VALUES = [-1, 0, math.inf, math.nan, "", None, True, []]
CLASSES = [
    rl.PPOParams, rl.A2CParams, rl.IMPALAParams, rl.TRPOParams, rl.REINFORCEParams,
    rl.DQNParams, rl.TD3Params, rl.SACParams, rl.TD3BCParams, rl.IQLParams, rl.BCParams,
    rl.DiscreteCQLParams, rl.ReBRACParams, rl.CrossQParams, rl.FlashSACParams, rl.CalQLParams, rl.FQEParams,
    rl.DDPGParams, rl.TQCParams, rl.REDQParams, rl.CQLParams, rl.C51Params, rl.DiscreteSACParams, rl.QRDQNParams,
    rl.PQNParams, rl.XQCParams, rl.SimbaV2Params, rl.FQLParams,
    rl.PQNParams, rl.DistillationParams,
]  # fmt: skip
ACCEPTED: dict[str, list[Any]] = {
    "gamma": [0], "gae_lambda": [0], "value_coef": [0], "entropy_coef": [0], "epsilon": [0], "tau": [0],
    "td_lambda": [0], "exploration_noise": [0], "target_noise": [0], "target_noise_clip": [0], "expectile": [0],
    "target_entropy": [-1, 0, None], "normalize_advantage": [True], "max_target_backup": [True],
    "normalize_q": [True],
    "damping": [0], "line_search_shrink": [0], "standardize_return": [True],
    "actor_bc_coef": [0], "critic_bc_coef": [0],
    "learn_temperature": [True], "entropy_in_target": [True], "double": [True],
    "max_grad_norm": [None], "optimizer": [None], "value_clip": [None], "target_kl": [None], "desired_kl": [None],
    "symmetry": [None],
    "actor_lr": [None], "critic_lr": [None], "value_lr": [None], "obs_std_eps": [0], "num_dropped": [0],
    "huber_delta": [None], "max_grad_value": [None], "grad_norm_type": [math.inf], "balance_grad_norms": [True],
    "amp": [None], "tf32": [None, True], "weight_decay": [0],
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


def test_json_from_before_a_field_takes_its_default() -> None:
    document = json.loads(rl.SACParams(tau=0.1).to_json())
    for name in ("adam_betas", "weight_decay"):
        del document["fields"][name]
    assert rl.SACParams.from_json(json.dumps(document)) == rl.SACParams(tau=0.1)
    assert hash(rl.SACParams(adam_betas=[0.5, 0.9])) == hash(rl.SACParams(adam_betas=(0.5, 0.9)))  # type: ignore[arg-type]  # a list too


@pytest.mark.parametrize(
    ("cls", "values", "text"),
    [
        (rl.BCParams, {"gamma": 1}, "gamma: must be left out; got 1"),
        (rl.BCParams, {"n_step": 10}, "n_step: must be left out; got 10"),
        (rl.DDPGParams, {"target_noise": 0.4}, "target_noise: must be left out; got 0.4 .* TD3 adds to DDPG."),
        (rl.DDPGParams, {"target_noise_clip": 1.0}, "target_noise_clip: must be left out; got 1.0 .* TD3 adds to DDPG"),
        (rl.DDPGParams, {"actor_update_interval": 4}, "actor_update_interval: must be left out; got 4 .* TD3 adds to"),
        (rl.TRPOParams, {"value_coef": 0.3}, "value_coef: must be left out; got 0.3 .*TRPO trains the critic apart"),
        (rl.TRPOParams, {"entropy_coef": 0.3}, "entropy_coef: must be left out; got 0.3 .*TRPO trains the critic"),
        (
            rl.PPOParams,
            {"optimizer": torch.optim.SGD, "weight_decay": 0.1},
            "weight_decay: must be left out; got 0.1 .*",
        ),
        (rl.IMPALAParams, {"c_bar": 2.0}, r"c_bar: must be at most rho_bar, 1; got 2.0 \(float\)"),
    ],
)
def test_values_that_contradict_the_algorithm(cls: Any, values: dict[str, Any], text: str) -> None:
    with pytest.raises(ParamsError, match=f"^{cls.__name__}.{text}"):
        cls(**values)
    assert rl.IMPALAParams(c_bar=2.0, rho_bar=3.0).c_bar == 2.0
