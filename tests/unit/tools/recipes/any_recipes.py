"""A recipe of each algorithm, whatever it learns from."""

from typing import Any

import rltrainer as rl
from rltrainer.tools.recipes import AnyRecipe
from rltrainer.tools.recipes.algorithms import ALGORITHMS, OFFLINE


def any_recipe(algorithm: str) -> AnyRecipe:
    """Return the shortest recipe of an algorithm, by its name: in CartPole, or from a file that is not there."""
    fields: dict[str, Any] = {"algorithm": algorithm, "params": ALGORITHMS[algorithm].params_class()}
    if algorithm in OFFLINE:
        return rl.OfflineRecipe(**fields, data="nowhere.npz")
    return rl.Recipe(**fields, env="CartPole-v1", num_env_steps=1)
