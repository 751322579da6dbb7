"""Tools around runs: recipes, runs, sweeps, plots, data sets, export, evaluation; and the command line.

The core imports none of them; `rltrainer` brings their names when one is asked for.
"""

from rltrainer.state import registry
from rltrainer.tools import datasets, plots, recipes
from rltrainer.tools.evaluation import *
from rltrainer.tools.export import *
from rltrainer.tools.recipes import OfflineRecipe, Recipe, Training, resume, train
from rltrainer.tools.runs import *
from rltrainer.tools.sweeps import *

__all__ = [
    "LogUniform", "OfflineRecipe", "Recipe", "Run", "SeedRun", "SweepResult", "SweepTrial", "Training", "Uniform",
    "VideoRecorder", "datasets", "evaluate_policy", "export_onnx", "export_torch", "open_run", "open_sweep", "plots",
    "recipes", "record", "resume", "run_seeds", "sweep", "train", "watch",
]  # fmt: skip

registry.add_classes([OfflineRecipe, Recipe])
