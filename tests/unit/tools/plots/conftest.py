"""Folders of runs as trainers write them, from numbers that a test names."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl

Rows = Mapping[str, Sequence[tuple[int, Mapping[str, float]]]]
MakeRun = Callable[..., rl.Run]


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return what writes a run's folder: rows by kind, and what the run was told."""

    def make(
        rows: Rows, name: str = "run", algorithm: str = "PPO", trainer: Mapping[str, Any] | None = None, **params: Any
    ) -> rl.Run:
        folder = rl.RunFolder.new(name, tmp_path / "runs")
        logger = folder.logger("jsonl", training_interval=1)
        logger.begin_run(rl.Every(1, "update_step"))
        fields = {"max_epochs": 2, "seed": 1, "training_collector": {"live": "Collector"}, **(trainer or {})}
        logger.log_params({
            "algorithm_class": algorithm, "algorithm": {"params": f"{algorithm}Params", "fields": params},
            "trainer": {"params": "OnPolicyTrainerParams", "fields": fields},
            "versions": {"torch": "2.13.0"}, "command": "python train.py",
        })  # fmt: skip
        for kind, of_kind in rows.items():
            for step, values in of_kind:
                logger.log(kind, values, step, step)
        logger.close()
        return rl.open_run(folder.path)

    return make


def returns(*values: float, every: int = 100) -> Rows:
    """Return test rows of these returns, which are the scores too, at 0, 100, 200 and so on."""
    return {"test": [(i * every, {"return": value, "score": value}) for i, value in enumerate(values)]}
