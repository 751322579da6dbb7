"""Params of algorithms as JSON; `tests/mistakes/test_fields.py` has the wrong values of their fields."""

import dataclasses
import json
from typing import Any

import pytest

import rltrainer as rl

CLASSES = [
    rl.PPOParams, rl.A2CParams, rl.IMPALAParams, rl.TRPOParams, rl.REINFORCEParams,
    rl.DQNParams, rl.TD3Params, rl.SACParams, rl.TD3BCParams, rl.IQLParams, rl.BCParams,
    rl.DiscreteCQLParams, rl.ReBRACParams, rl.CrossQParams, rl.FlashSACParams, rl.CalQLParams, rl.FQEParams,
    rl.DDPGParams, rl.TQCParams, rl.REDQParams, rl.CQLParams, rl.C51Params, rl.DiscreteSACParams, rl.QRDQNParams,
    rl.PQNParams, rl.XQCParams, rl.SimbaV2Params, rl.FQLParams,
    rl.PQNParams, rl.DistillationParams,
]  # fmt: skip


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
