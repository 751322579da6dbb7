"""The recipes that come with rltrainer: data in one file per algorithm beside this one, `ppo.toml` and so on.

A table is named by the env's id. Its `params`, `policy` and `trainer` hold values as `to_json` of params writes them: a
schedule is `{schedule = "LinearSchedule", start = 1e-3, end = 0.0, until = 1.0}`, an activation `{known = "ReLU"}`; a
wrapper is its name, or `{wrapper = "TimeLimit", max_episode_steps = 100}`.
None, which TOML has not, is `"none"`.
"""

import contextlib
import functools
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.files.atomic_write import replaced_file, write_errors
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import open_regular, read_text
from rltrainer.loggers import RunFolder
from rltrainer.state.plain import PlainReader
from rltrainer.tools.recipes.algorithms import ALGORITHMS, algorithm_named
from rltrainer.tools.recipes.measured import ranked
from rltrainer.tools.recipes.recipe import AnyRecipe, OfflineRecipe, Recipe
from rltrainer.validation.suggestions import did_you_mean

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Return the names of all recipes, such as "ppo/CartPole-v1"."""
    return sorted(f"{algorithm}/{env}" for algorithm in ALGORITHMS for env in _tables(algorithm))


def get(algorithm: str, env: str | None = None) -> Recipe:
    """Return a recipe: `get("ppo", "LunarLander-v3")`, or `get("ppo/LunarLander-v3")`.

    Args:
        algorithm: its name, or the name of the recipe; a `ParamsError` names the nearest one if there is none.
        env: the env's id.
    """
    name = algorithm if env is None else f"{algorithm}/{env}"
    if not isinstance(name, str) or "/" not in name:
        rule = "must be the name of a recipe, such as 'ppo/CartPole-v1'"
        raise ParamsError.about("recipes.get", "algorithm", rule, algorithm, "rl.recipes.names() has all.")
    algorithm, _, env = name.partition("/")
    algorithm_named("recipes.get", algorithm)
    if env not in _tables(algorithm):
        hint = did_you_mean(name, names()) or f" Recipes of {algorithm}: {', '.join(_tables(algorithm)) or 'none'}."
        raise ParamsError(f"recipes.get: there is no recipe {name!r}.{hint}")
    return read_recipe(algorithm, env, _tables(algorithm)[env])


def find(env: str, algorithm: str | None = None) -> tuple[Recipe, str] | None:
    """Return the recipe for an env or another version of it, and words on the choice.

    It is the quickest measured recipe within 5 % of the best one, and without a measured recipe a guess. All Atari
    games train with the same settings, so a game without a recipe gets another game's.
    """
    order = [algorithm] if algorithm else ["sac", "ppo", *ALGORITHMS]  # SAC has no recipes for discrete actions
    for is_meant in (
        lambda other: other == env,
        lambda other: _without_version(other) == _without_version(env),
        lambda other: is_atari(other) and is_atari(env),
    ):
        envs = [next(filter(is_meant, _tables(each)), None) for each in order]
        names = list(dict.fromkeys(f"{each}/{found}" for each, found in zip(order, envs, strict=True) if found))
        if not names:
            continue
        found = ranked(names)
        recipe = get(next(iter(found), names[0]))
        words = f"recipe {recipe.name} ({recipe.source})"
        if len(found) > 1:
            _, seconds = found[recipe.name]
            words += f", the quickest within 5 % of the best, out of {len(found)} measured ones: {seconds:.0f} s"
        elif len(names) > 1:
            words += ", the only one that was measured" if found else ", a guess, as none was measured"
        return recipe, words
    return None


def read_recipe(algorithm: str, env: str, table: Mapping[str, Any]) -> Recipe:
    """Return the recipe in a table of a file."""
    reader = PlainReader({}, lambda place, name: f"a recipe holds data only, not {name!r}")
    fields = {name: _read(value, reader, f"{algorithm}/{env}.{name}") for name, value in table.items()}
    params = algorithm_named("recipes", algorithm).params_class(**fields.pop("params", {}))
    return Recipe(algorithm=algorithm, env=env, params=params, **fields)


@functools.cache
def _tables(algorithm: str) -> dict[str, dict[str, Any]]:
    path = FOLDER / f"{algorithm}.toml"
    if not path.is_file():
        return {}
    with open_regular(path) as file:
        return tomllib.load(file)


def _read(value: Any, reader: PlainReader, path: str) -> Any:
    field = path.rpartition(".")[2]
    if field in ("params", "policy", "trainer", "env_kwargs"):
        return {name: None if each == "none" else reader.read(each, f"{path}.{name}") for name, each in value.items()}
    if field in ("wrappers", "test_wrappers") and isinstance(value, list):
        return tuple(reader.read({"dict": each} if isinstance(each, dict) else each, path) for each in value)
    return reader.read(value, path)


def is_atari(env: str) -> bool:
    """Return whether an id names an Atari game: `ALE/Pong-v5`, `PongNoFrameskip-v4`."""
    return env.startswith("ALE/") or "NoFrameskip-" in env


def _without_version(env: str) -> str:
    return re.sub(r"^ALE/|(NoFrameskip)?-v\d+$", "", env)


NAME = "recipe.json"
# The file in a run's folder of an algorithm that continues.
START = "start.safetensors"


def write_recipe(recipe: AnyRecipe, folder: RunFolder) -> None:
    """Write the recipe of a new run; a resumed run keeps its own."""
    path = folder.path / NAME
    folder.refuse_links()
    if path.exists():
        return
    with write_errors(path, CheckpointError), replaced_file(path) as file:
        file.write((recipe.to_json() + "\n").encode())


def epochs_of(folder: RunFolder) -> int | None:
    """Return the `max_epochs` of the recipe in a run's folder; None without a readable one."""
    try:
        with open_regular(folder.path / NAME) as file:
            found = read_json(read_text(file))["fields"]["max_epochs"]
    except (OSError, LookupError, TypeError, ValueError):
        return None
    return found if isinstance(found, int) else None


def seeds_in(folder: str | os.PathLike[str]) -> list[RunFolder]:
    """Return the folders of the runs of `rl.train(num_seeds=...)` by seed; none in another folder."""
    found = [path.parent for path in Path(folder).glob(f"seed-*/{NAME}") if path.parent.name[5:].isdecimal()]
    return [RunFolder(path) for path in sorted(found, key=lambda path: int(path.name[5:])) if not path.is_symlink()]


def recipe_of(folder: RunFolder, **live: object) -> AnyRecipe:
    """Return the recipe in a run's folder; a `CheckpointError` if it is missing, damaged, or names a missing object.

    `live` has the objects that the file can only name: `env`, a factory; `data`, a buffer.
    """
    path = folder.path / NAME
    recipe_class: type[AnyRecipe] = Recipe
    try:
        with open_regular(path) as file:
            text = read_text(file).decode(errors="replace")
        with contextlib.suppress(KeyError, TypeError, ValueError):  # `from_json` says what is wrong
            recipe_class = OfflineRecipe if read_json(text)["params"] == OfflineRecipe.__name__ else Recipe
        recipe = recipe_class.from_json(text, **live)
    except FileNotFoundError:
        hint = "Runs of rl.train and of recipes have one; make the trainer of another as its program does."
        raise CheckpointError(f"{path}: is not there, so nothing says how the run was made. {hint}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except ParamsError as error:
        raise CheckpointError(f"{path}: {error}") from error
    # The recipe has the folder's first path; it may have moved since.
    if recipe.start is not None and Path(recipe.start).name == START:
        for own in (folder.path.parent, folder.path):  # one for all seeds, or the run's
            recipe = recipe.with_fields(start=own / START) if (own / START).exists() else recipe
    return recipe
