"""The fields of `CheckpointParams` against every kind of wrong value, and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError


@pytest.mark.parametrize("every", [10_000, rl.Every(2, "epoch"), rl.Every(0.5, "second")])
def test_json_round_trip(every: Any) -> None:
    params = rl.CheckpointParams(Path("runs"), every=every, resume=Path("runs/checkpoint-10"), keep_last=None)
    assert rl.CheckpointParams.from_json(params.to_json()) == params
    assert params.folder == "runs"


@pytest.mark.parametrize("every", [{"every": 0, "unit": "epoch"}, {"every": 1, "unit": "day"}, {"every": 1}])
def test_json_of_no_interval(every: Any) -> None:
    plain = json.loads(rl.CheckpointParams("runs").to_json())
    plain["fields"]["every"] = every
    with pytest.raises(ParamsError):
        rl.CheckpointParams.from_json(json.dumps(plain))
