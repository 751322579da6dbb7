"""Train in an env, and be told all that was chosen: `rl.train("CartPole-v1")`."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rltrainer.algorithms import Algorithm, OnPolicyAlgorithm
from rltrainer.envs import make_vec
from rltrainer.envs.wrappers.wrapper_names import wrappers_named
from rltrainer.field_rules import AnyPath, checked
from rltrainer.loggers import RunFolder
from rltrainer.recipes import cookbook
from rltrainer.recipes.algorithms import algorithm_named
from rltrainer.recipes.recipe import AnyEnv, Recipe, Wrappers, live_fields
from rltrainer.recipes.recipe_file import write_recipe
from rltrainer.trainers import InfoStats

SHAPES = {"num_envs", "env_kwargs", "wrappers"}
"""Fields that recommended settings depend on."""


@dataclass(frozen=True)
class Training:
    """The outcome of `rl.train`.

    Args:
        algorithm: as it was at the best test step.
        folder: where the run lies: log, best algorithm, checkpoints, recipe.
        info: statistics of the run.
        recipe: the settings that it was trained with.
    """

    algorithm: Algorithm
    folder: RunFolder
    info: InfoStats
    recipe: Recipe


def train(
    env: str | Callable[[], gym.Env[Any, Any]],
    algorithm: str | None = None,
    *,
    directory: str | os.PathLike[str] = "runs",
    **fields: Any,
) -> Training:
    """Train an agent in an env by the best recipe that there is for it, in a numbered folder of its own.

    Without a recipe for this env, the algorithm's `recommended` fields are taken: of PPO, or of SAC for actions in a
    bounded Box. What was chosen is printed, and written to the folder.

    Args:
        env: a gymnasium id, or a factory of envs.
        algorithm: by its name, "ppo", "sac", ...; None takes the recipe's.
        directory: where the folder is made.
        fields: what shall be otherwise, each by its own name: of `Recipe` (`num_env_steps`, `num_envs`, `seed`), of the
            algorithm's params (`lr`), of the trainer's (`batch_size`, `stop_fn`, `hooks`), or of the policy
            (`hidden_sizes`).

    Returns:
        the best algorithm, the folder, and the statistics.

    Raises:
        ParamsError: an argument breaks its rule, or a field is none of these.
    """
    env = checked("train", "env", env, AnyEnv)
    directory = checked("train", "directory", directory, AnyPath)
    verbose = fields.get("verbose", True)
    recipe, words = choose_recipe(env, algorithm, {name: fields[name] for name in SHAPES & fields.keys()})
    live = {name: fields.pop(name) for name in list(fields) if name in live_fields(recipe)}
    recipe = recipe.with_fields(**fields)
    folder = RunFolder.new(recipe.name.replace("/", "_"), directory)
    if verbose:
        print(f"rl.train: {words}; {recipe.num_env_steps:,} env steps, to {folder.path}")
    return run_recipe(recipe, folder, **live)


def run_recipe(recipe: Recipe, folder: RunFolder, **live: Any) -> Training:
    """Train by a recipe in a folder, or go on with what was trained there; return the best algorithm.

    Args:
        recipe: the settings.
        folder: of this run, and no other.
        live: further fields of the trainer's params, such as `hooks`.
    """
    try:
        trainer = recipe.make_trainer(run_folder=folder, **live)
    except BaseException:
        with contextlib.suppress(OSError):
            folder.path.rmdir()  # if it is empty: nothing came of it
        raise
    write_recipe(recipe, folder)
    try:
        info = trainer.run()
    finally:
        for collector in trainer.params.collectors().values():
            collector.close()
    if folder.best.exists():
        trainer.algorithm.load(folder.best)
    return Training(trainer.algorithm, folder, info, recipe)


def for_env(env: str | Callable[[], gym.Env[Any, Any]], algorithm: str | None = None) -> Recipe:
    """Return the recipe that `rl.train` takes for an env; with the algorithm's recommended fields if there is none.

    Args:
        env: a gymnasium id, or a factory of envs.
        algorithm: by its name; None leaves it to the env.

    Raises:
        ParamsError: an argument breaks its rule.
    """
    return choose_recipe(checked("recipes.for_env", "env", env, AnyEnv), algorithm, {})[0]


def choose_recipe(env: Any, algorithm: str | None, shape: dict[str, Any]) -> tuple[Recipe, str]:
    """Return the recipe for an env, and words that say which it is.

    Args:
        env: an id or a factory.
        algorithm: by its name; None leaves it to the env.
        shape: fields that recommended settings depend on: `num_envs`, `env_kwargs`, `wrappers`.
    """
    if algorithm is not None:
        algorithm_named("train", algorithm)
    found = cookbook.find(env, algorithm) if isinstance(env, str) else None
    if found is None:
        recipe = recommended_recipe(env, algorithm, **shape)
        return recipe, f"no recipe for {recipe.env_name}, so the recommended settings of {recipe.algorithm}"
    words = f"recipe {found.name} ({found.source})"
    return found.with_fields(env=env), words if found.env == env else f"{words}, for want of one for {env}"


def recommended_recipe(
    env: Any,
    algorithm: str | None = None,
    num_envs: int | None = None,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Wrappers = (),
) -> Recipe:
    """Return a recipe of what `recommended` says of an algorithm, or of PPO or SAC, whichever suits the actions."""
    make: Any = make_vec
    kwargs = env_kwargs or {}
    wrapped = {"wrappers": wrappers_named("Recipe", "wrappers", wrappers), **kwargs}
    if algorithm is None:
        looked_at = make(env, 1, **wrapped)
        algorithm = "sac" if _is_for_sac(looked_at.single_action_space) else "ppo"
        looked_at.close()
    cls: Any = algorithm_named("train", algorithm)
    is_on_policy = issubclass(cls, OnPolicyAlgorithm)
    envs = make(env, num_envs or (8 if is_on_policy else 1), **wrapped)
    fields = cls.recommended(envs)
    envs.close()
    return Recipe(
        algorithm=algorithm, env=env, env_kwargs=kwargs, wrappers=wrappers, num_envs=envs.num_envs,
        params=cls.params_class(),
        num_env_steps=1_000_000 if is_on_policy else 200_000, trainer=dict(fields),
        source=f"{cls.__name__}.recommended",
    )  # fmt: skip


def _is_for_sac(space: gym.Space[Any]) -> bool:
    is_vector = isinstance(space, spaces.Box) and len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating)
    return is_vector and cast(spaces.Box, space).is_bounded()
