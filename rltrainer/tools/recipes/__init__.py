"""Recipes: settings that train well in an env, as data; and `train`, which picks one."""

from rltrainer.tools.recipes.cookbook import get, names, recipe_of
from rltrainer.tools.recipes.recipe import AnyRecipe, OfflineRecipe, Recipe
from rltrainer.tools.recipes.training import Training, for_env, resume, run_recipe, train

__all__ = [
    "AnyRecipe", "OfflineRecipe", "Recipe", "Training", "for_env", "get", "names", "recipe_of", "resume", "run_recipe",
    "train",
]  # fmt: skip
