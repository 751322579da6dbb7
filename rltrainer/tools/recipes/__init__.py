"""Recipes: settings that train well in an env, as data; and `train`, which picks one."""

from rltrainer.tools.recipes.any_recipe import AnyRecipe
from rltrainer.tools.recipes.cookbook import get, names
from rltrainer.tools.recipes.offline_recipe import OfflineRecipe
from rltrainer.tools.recipes.recipe import Recipe
from rltrainer.tools.recipes.recipe_file import recipe_of
from rltrainer.tools.recipes.training import Training, for_env, run_recipe, train

__all__ = [
    "AnyRecipe",
    "OfflineRecipe",
    "Recipe",
    "Training",
    "for_env",
    "get",
    "names",
    "recipe_of",
    "run_recipe",
    "train",
]
