"""A policy that agents of a parallel env share: evaluated, filmed and watched, as AgentsAsEnvs would have it play."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import EnvError, ParamsError
from tests.unit.envs.agents.teams import Failing, Visitors
from tests.unit.tools.evaluation.test_video_recorder import frames, near
from tests.unit.tools.refusals import refuses

pytest.importorskip("imageio_ffmpeg")

ONES: list["Gray"] = []
"""All that were made."""


class Gray(Visitors):
    """Renders gray: 10 for each step. Agent a leaves after 3 steps, agent b after 5."""

    metadata = {"name": "gray", "render_fps": 7}  # noqa: RUF012

    def __init__(self, render_mode: str = "rgb_array", **options: Any) -> None:
        super().__init__(**options)
        self.render_mode = render_mode
        self.is_open = True
        ONES.append(self)

    def render(self) -> Any:
        return np.full((48, 65, 3), 10 + 10 * self.num_steps, np.uint8)

    def close(self) -> None:
        self.is_open = False


def policy(agent_id: bool = False) -> rl.ActorCritic:
    rl.seed(1)
    envs = rl.AgentsAsEnvs(Visitors, 2, agent_id=agent_id)
    return rl.ActorCritic.for_envs(envs, hidden_sizes=(8,))


def test_a_factory_is_evaluated_as_agents_as_envs_are() -> None:
    ONES.clear()
    actor = policy()
    found = rl.evaluate_policy(actor, Gray, 3, seed=2, info_keys=["team_return"])
    expected = rl.evaluate_policy(actor, rl.AgentsAsEnvs(Visitors, 3), 6, seed=2, info_keys=["team_return"])
    assert found.returns.tolist() == expected.returns.tolist()
    assert sorted(found.lengths.tolist()) == [3, 3, 3, 5, 5, 5]  # three of each agent
    np.testing.assert_array_equal(found.infos["team_return"], expected.infos["team_return"])
    assert len(ONES) == 3  # none was made to be looked at only
    assert not any(each.is_open for each in ONES)
    # An env stays open, and a policy may ask who it is.
    found = rl.evaluate_policy(policy(agent_id=True), env := Gray(), 2, seed=2)
    assert sorted(found.lengths.tolist()) == [3, 3, 5, 5]
    assert env.is_open


def test_all_agents_are_in_one_film(tmp_path: Path) -> None:
    made = Gray()
    for env in (Gray, lambda: Gray(), made):
        stats = rl.record(policy(), env, tmp_path / "team.mp4", num_episodes=2, seed=2)
        levels, fps = frames(tmp_path / "team.mp4")
        assert near(levels, [*range(10, 70, 10), *range(10, 70, 10)])  # each reset, each step, and no third episode
        assert fps == 7
        assert sorted(stats.lengths.tolist()) == [3, 3, 5, 5]
    assert made.is_open


def test_what_goes_wrong_is_said(tmp_path: Path) -> None:
    path = tmp_path / "team.mp4"
    text = "^record.env: must render frames; got render_mode='human'"
    refuses(ParamsError, text, rl.record, policy(), lambda: Gray("human"), path)
    text = "^record.env: must be a gymnasium id, .* Pass what makes one copy"
    refuses(ParamsError, text, rl.record, policy(), rl.AgentsAsEnvs(Gray, 1), path)
    refuses(EnvError, r"broken", rl.record, policy(), lambda: Failing(tmp_path / "failed"), path)
    assert os.listdir(tmp_path) == ["failed"]


def test_agents_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    stats = rl.watch(policy(), lambda: Gray("human"), seed=2)
    assert sorted(stats.lengths.tolist()) == [3, 5]
    refuses(ParamsError, r"^watch.env: must show a window; got render_mode='rgb_array'", rl.watch, policy(), Gray)
