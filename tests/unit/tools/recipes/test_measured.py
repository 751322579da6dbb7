"""What was measured: the package's file is what the runs say, and a recipe is picked by it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from benchmarks.recipes import PAGE, packed, with_choices
from rltrainer.tools.recipes.cookbook import find
from rltrainer.tools.recipes.measured import FILE, measured


def test_the_file_and_the_page_are_what_the_runs_say() -> None:
    assert FILE.read_text() == packed()
    assert with_choices(PAGE.read_text()) == PAGE.read_text()
    assert FILE.stat().st_size < 150_000
    assert set(measured()) <= set(rl.recipes.names())


MANY = {"sac/Pendulum-v1": [[-900.0, -100.0, -50.0]], "td3/Pendulum-v1": [[-200.0, -300.0], [-300.0, -400.0]]}


@pytest.mark.parametrize(("curves", "seconds", "name", "words"), [
    # The quickest ends after two tests: sac has -100 then, td3 (-300 - 400) / 2.
    (MANY, 1.0, "sac/Pendulum-v1", "recipe sac/Pendulum-v1 (RL Zoo), the best of 2 that were measured, at 2 s"),
    # After one test td3's is better: (-200 - 300) / 2 against -900.
    (MANY | {"trpo/Pendulum-v1": [[-999.0]]}, 1.0, "td3/Pendulum-v1",
     "recipe td3/Pendulum-v1 (RL Zoo), the best of 3 that were measured, at 1 s"),
    # Equal ones: the quicker.
    ({"ppo/Pendulum-v1": [[-7.0, -7.0]], "trpo/Pendulum-v1": [[-7.0]]}, 1.0, "trpo/Pendulum-v1",
     "recipe trpo/Pendulum-v1 (RL Zoo), the best of 2 that were measured, at 1 s"),
    ({"ddpg/Pendulum-v1": [[-999.0]]}, 1.0, "ddpg/Pendulum-v1",
     "recipe ddpg/Pendulum-v1 (RL Zoo), the only one that was measured"),
    ({"ddpg/BipedalWalker-v3": [[-999.0]]}, 1.0, "sac/Pendulum-v1",
     "recipe sac/Pendulum-v1 (RL Zoo), a guess, as none was measured"),
])  # fmt: skip
def test_the_best_at_equal_seconds_is_picked(
    curves: Any, seconds: float, name: str, words: str, measured_as: Callable[..., None]
) -> None:
    measured_as(curves, seconds)
    found = find("Pendulum-v1")
    assert found is not None
    assert (found[0].name, found[1]) == (name, words)
    named = find("Pendulum-v1", "ppo")
    assert named is not None
    assert (named[0].name, named[1]) == ("ppo/Pendulum-v1", "recipe ppo/Pendulum-v1 (RL Zoo)")


def test_a_resumed_run_keeps_its_algorithm(tmp_path: Path, measured_as: Callable[..., None]) -> None:
    short: Any = {"num_env_steps": 512, "max_epochs": 1, "test_step_num_episodes": 1, "show_progress": False}
    measured_as({"trpo/CartPole-v1": [[500.0]]})
    first = rl.train("CartPole-v1", folder=tmp_path, **short)
    measured_as({"ppo/CartPole-v1": [[500.0]]})
    resumed = rl.resume(first.folder.path, max_epochs=2)
    assert (first.recipe.algorithm, resumed.recipe.algorithm) == ("trpo", "trpo")
    assert rl.recipes.for_env("CartPole-v1").algorithm == "ppo"
