"""README's learning curve: a recipe by seed, beside the score that its source published.

    python -m pictures.published                 trains three seeds first, some three minutes each on one core
    python -m pictures.published --runs FOLDER   takes the runs 1, 2 and 3 in a folder
    python -m pictures.published --draw          only draws what was measured

Writes benchmarks/learning_curve.json, and docs/images/published.png from it.
"""

import argparse
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import rltrainer as rl
from pictures.figures import save
from rltrainer.tools.plots.figures import GREY, count_steps, drawing, line, new_figure

ROOT = Path(__file__).parents[1]
STORE = ROOT / "benchmarks" / "learning_curve.json"
PICTURE = ROOT / "docs" / "images" / "published.png"
RECIPE = "ppo/LunarLander-v3"
SEEDS = (1, 2, 3)
"""Those of benchmarks/recipes.json."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="a folder of trained runs, named by their seeds")
    parser.add_argument("--draw", action="store_true", help="train nothing")
    args = parser.parse_args()
    if not args.draw:
        with tempfile.TemporaryDirectory() as temporary:
            folder = args.runs or train(Path(temporary))
            STORE.write_text(json.dumps(measured(folder), indent=1) + "\n")
    draw(json.loads(STORE.read_text()))


def train(folder: Path) -> Path:
    """Train each seed in a process, and return the folder of the runs."""
    rl.run_seeds(functools.partial(train_seed, folder=folder), SEEDS)
    return folder


def train_seed(seed: int, folder: Path) -> None:
    """Train one seed as benchmarks/recipes.py does."""
    recipe = rl.recipes.get(RECIPE).with_fields(seed=seed, verbose=False, show_progress=False)
    rl.recipes.run_recipe(recipe, rl.RunFolder(folder / str(seed)))


def measured(folder: Path) -> dict[str, Any]:
    """Return the returns of all test steps, by seed."""
    tests = {seed: rl.open_run(folder / str(seed)).rows("test") for seed in SEEDS}
    returns = {str(seed): np.round(rows["return"], 1).tolist() for seed, rows in tests.items()}
    return {"recipe": RECIPE, "steps": tests[SEEDS[0]]["step"].tolist(), "returns": returns}


def draw(found: dict[str, Any]) -> None:
    """Draw the seeds, their mean, and the published score."""
    recipe = rl.recipes.get(found["recipe"])
    assert recipe.published_score is not None
    returns = np.array(list(found["returns"].values()))
    with drawing():
        figure, [axes] = new_figure(found["recipe"])
        for of_seed in returns:
            axes.plot(found["steps"], of_seed, color=line(0)["color"], linewidth=0.6, alpha=0.5)
        axes.plot(found["steps"], returns.mean(0), **line(0), label=f"rltrainer, mean of {len(returns)} seeds")
        text = f"published by {recipe.source}: {recipe.published_score:g}"
        axes.axhline(recipe.published_score, color=GREY, linestyle="dashed", linewidth=1.2, label=text)
        count_steps(axes, "env steps")
        axes.set_ylabel("test return")
        axes.legend(loc="lower right")
    save(figure, PICTURE, (5.2, 2.9))


if __name__ == "__main__":
    main()
