"""A run on agents that is broken off in the middle of their episodes goes on by itself, bit for bit."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from tests.resume.runs import build, digest
from tests.resume.test_mid_episode import break_off
from tests.resume.test_rows import rows
from tests.unit.envs.agents.teams import Visitors

COMING_AND_GOING = partial(Visitors, {"a": (2, 9), "b": (0, 13)}, ("b",))


def agents(num_envs: int, action_space: Any, seed: int | None = None) -> Any:
    return rl.AgentsAsEnvs(COMING_AND_GOING, num_envs // 2, agent_id=True)


def joint(num_envs: int, action_space: Any, seed: int | None = None) -> Any:
    return rl.make_vec(lambda: rl.JointEnv(COMING_AND_GOING()), num_envs, backend="sync")


@pytest.mark.parametrize(
    ("name", "make_envs"), [("ppo_midway", agents), ("recurrent_ppo_midway", agents), ("dqn_midway", agents),
                            ("ppo_midway", joint)]
)  # fmt: skip
def test_a_run(name: str, make_envs: Any, tmp_path: Path) -> None:
    def start(folder: Path) -> Any:
        return build(
            name, 5, rl.JSONLinesLogger(folder / "log.jsonl", training_interval=1, update_interval=1, strict=True),
            num_envs=4, make_envs=make_envs,
            checkpoint=rl.CheckpointParams(folder / "checkpoints", every=rl.Every(3, "training_step")),
        )  # fmt: skip

    whole = start(tmp_path / "whole")
    whole.run()
    for num_steps in (7, 14):
        break_off(start(tmp_path / "broken"), num_steps)
    last = start(tmp_path / "broken")
    last.run()
    assert digest(last) == digest(whole)
    assert rows(last.params.logger.path) == rows(whole.params.logger.path)
