"""The rows of a run that was stopped and resumed are those of a whole one: bit for bit, none doubled, none missing."""

import json
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from tests.resume.runs import build
from tests.resume.test_resume import cut_at

KINDS = ("ppo", "ppo_episodes", "recurrent_ppo", "sac", "dqn_prioritized", "offline_iql", "ppo_midway", "sac_midway")
"""One run of each kind of trainer and collection; `test_mid_episode` compares the rows of all."""


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a log after that of the params, but for what is measured in seconds."""
    params, *found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [params["kind"]] == [kind for row in [params, *found] if (kind := row["kind"]) == "params"]
    return [{name: value for name, value in row.items() if "per_second" not in name} for row in found]


def logger(path: Path) -> rl.MultiLogger:
    """Return a logger that writes often, the defaults, and rarely: a stop finds means half gathered."""
    return rl.MultiLogger(
        rl.JSONLinesLogger(path / "often.jsonl", training_interval=1, update_interval=1, strict=True),
        rl.JSONLinesLogger(path / "default.jsonl", strict=True),
        rl.JSONLinesLogger(path / "rarely.jsonl", training_interval=25, update_interval=3, strict=True),
    )


@pytest.mark.parametrize("name", KINDS)
def test_rows_go_on_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    build(name, logger=logger(tmp_path / "whole")).run()
    for num_training_steps in (1, 3, 5):
        path = tmp_path / str(num_training_steps)
        if name == "ppo_episodes" and num_training_steps == 5:
            num_training_steps = 6
        cut_at(build(name, logger=logger(path)), path / "checkpoint", num_training_steps)
        resumed = build(name, logger=logger(path))
        resumed.restore(path / "checkpoint")
        resumed.run()
        for kind in ("often", "default", "rarely"):
            assert rows(path / f"{kind}.jsonl") == rows(tmp_path / "whole" / f"{kind}.jsonl"), (
                kind,
                num_training_steps,
            )
        assert sorted(file.name for file in path.glob("*.jsonl")) == ["default.jsonl", "often.jsonl", "rarely.jsonl"]
