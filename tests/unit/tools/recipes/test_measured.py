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


PPO, TRPO, SAC = "ppo/Pendulum-v1", "trpo/Pendulum-v1", "sac/Pendulum-v1"


@pytest.mark.parametrize(("curves", "name", "words"), [
    # The lowest test step is -1000 and the best score -50, so 5 % are 47.5. TRPO has (-95 - 100) / 2 after one second.
    ({SAC: [[-1000.0, -200.0, -50.0]], TRPO: [[-95.0], [-100.0]]}, TRPO, "{close}, out of 2 measured ones: 1 s"),
    ({SAC: [[-1000.0, -200.0, -50.0]], TRPO: [[-95.0], [-101.0]]}, SAC, "{close}, out of 2 measured ones: 3 s"),
    # The quickest is far from the best, and PPO close to it: PPO's own start is the lowest, so 5 % are 42.5.
    ({SAC: [[-100.0, -80.0, -50.0]], PPO: [[-900.0, -90.0]], TRPO: [[-600.0]]}, PPO,
     "{close}, out of 3 measured ones: 2 s"),
    ({"ddpg/Pendulum-v1": [[-999.0]]}, "ddpg/Pendulum-v1", "the only one that was measured"),
    ({"ddpg/BipedalWalker-v3": [[-999.0]]}, SAC, "a guess, as none was measured"),
])  # fmt: skip
def test_the_quickest_good_one_is_picked(curves: Any, name: str, words: str, measured_as: Callable[..., None]) -> None:
    measured_as(curves, 1.0)
    found = find("Pendulum-v1")
    assert found is not None
    words = words.format(close="the quickest within 5 % of the best")
    assert (found[0].name, found[1]) == (name, f"recipe {name} (RL Zoo), {words}")
    named = find("Pendulum-v1", "ppo")
    assert named is not None
    assert (named[0].name, named[1]) == (PPO, "recipe ppo/Pendulum-v1 (RL Zoo)")


def test_a_resumed_run_keeps_its_algorithm(tmp_path: Path, measured_as: Callable[..., None]) -> None:
    short: Any = {"num_env_steps": 512, "max_epochs": 1, "test_step_num_episodes": 1, "show_progress": False}
    measured_as({"trpo/CartPole-v1": [[500.0]]})
    first = rl.train("CartPole-v1", folder=tmp_path, **short)
    measured_as({"ppo/CartPole-v1": [[500.0]]})
    resumed = rl.resume(first.folder.path, max_epochs=2)
    assert (first.recipe.algorithm, resumed.recipe.algorithm) == ("trpo", "trpo")
    assert rl.recipes.for_env("CartPole-v1").algorithm == "ppo"
