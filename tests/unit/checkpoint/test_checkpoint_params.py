"""The fields of `CheckpointParams` as JSON."""

from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl


@pytest.mark.parametrize("every", [10_000, rl.Every(2, "epoch"), rl.Every(0.5, "second")])
def test_json_round_trip(every: Any) -> None:
    params = rl.CheckpointParams(Path("runs"), every=every, resume=Path("runs/checkpoint-10"), keep_last=None)
    assert rl.CheckpointParams.from_json(params.to_json()) == params
    assert params.folder == "runs"
