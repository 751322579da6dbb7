"""The recipe in the folder of a run, `recipe.json`: what lets a command go on with the run, or play its env."""

from pathlib import Path

from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.files.atomic_write import replaced_file, write_errors
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import open_regular, read_text
from rltrainer.loggers import RunFolder
from rltrainer.tools.recipes.any_recipe import AnyRecipe
from rltrainer.tools.recipes.offline_recipe import OfflineRecipe
from rltrainer.tools.recipes.recipe import Recipe

NAME = "recipe.json"
START = "start.safetensors"
"""File in a run's folder of the algorithm that went on."""


def write_recipe(recipe: AnyRecipe, folder: RunFolder) -> None:
    """Write the recipe of a run that begins; one that goes on keeps its own."""
    path = folder.path / NAME
    folder.refuse_links()
    if path.exists():
        return
    folder.path.mkdir(parents=True, exist_ok=True)
    with write_errors(path, CheckpointError), replaced_file(path) as file:
        file.write((recipe.to_json() + "\n").encode())


def recipe_of(folder: RunFolder, **live: object) -> AnyRecipe:
    """Return the recipe of a run.

    Args:
        folder: of the run.
        live: what the file can only name: `env`, a factory; `data`, a buffer.

    Raises:
        CheckpointError: there is none, or it is damaged, or names what must be passed.
    """
    path = folder.path / NAME
    try:
        with open_regular(path) as file:
            text = read_text(file).decode(errors="replace")
        recipe = _class_of(text).from_json(text, **live)
    except FileNotFoundError:
        hint = "Runs of rl.train and of recipes have one; make the trainer of another as its program does."
        raise CheckpointError(f"{path}: is not there, so nothing says how the run was made. {hint}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except ParamsError as error:
        raise CheckpointError(f"{path}: {error}") from error
    own = folder.path / START  # wherever the folder is by now
    if recipe.start is not None and Path(recipe.start).name == START and own.exists():
        recipe = recipe.with_fields(start=own)
    return recipe


def _class_of(text: str) -> type[AnyRecipe]:
    """Return the class that a recipe's text is of; any for what is none, since each says that."""
    try:
        is_offline = read_json(text)["params"] == OfflineRecipe.__name__
    except (KeyError, TypeError, ValueError):
        is_offline = False
    return OfflineRecipe if is_offline else Recipe
