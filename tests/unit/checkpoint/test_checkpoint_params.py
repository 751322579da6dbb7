"""The fields of `CheckpointParams` against every kind of wrong value, and as JSON."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError

BAD_VALUES = [-1, 0, math.inf, math.nan, "", None, True, []]
RULES = {
    "folder": "must be the path of a folder",
    "every": "must be a positive integer, or an Every",
    "keep_last": "must be a positive integer or None",
    "keep_best": "must be a non-negative integer",
    "resume": 'must be "auto", "never", or the path of a checkpoint',
    "signals": "must be True or False",
    "on_save_error": "must be one of 'raise', 'warn'",
    "record_episodes": "must be True or False",
}
ACCEPTED: dict[str, list[Any]] = {"keep_last": [None], "keep_best": [0], "signals": [True], "record_episodes": [True]}
CASES = [
    (field, value)
    for field in RULES
    for value in BAD_VALUES
    if not any(value is ok or (value == ok and type(value) is type(ok)) for ok in ACCEPTED.get(field, []))
]


@pytest.mark.parametrize(("field", "value"), CASES)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ParamsError) as caught:
        rl.CheckpointParams(**({"folder": "runs"} | {field: value}))
    text = f"CheckpointParams.{field}: {RULES[field]}; got {value!r} ({type(value).__name__})"
    text += '. Write rl.Every(600, "second"), or a number of training steps.' * (field == "every")
    assert str(caught.value) == text


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
