"""README's learning curves: ten seeds of six recipes, beside the scores that their sources published.

python -m pictures.published                 draws docs/images/published.png from benchmarks/measured/, in seconds
"""

from pathlib import Path

import numpy as np

import rltrainer as rl
from benchmarks.recipes import runs_of
from pictures.figures import save
from rltrainer.tools.plots.figures import GREY, Axes, count_steps, drawing, line, new_figure

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "published.png"
RECIPES = (
    "ppo/CartPole-v1",
    "trpo/Acrobot-v1",
    "trpo/MountainCar-v0",
    "ppo/MountainCarContinuous-v0",
    "ppo/Pendulum-v1",
    "ppo/LunarLander-v3",
)


def main() -> None:
    draw(RECIPES)


def draw(names: tuple[str, ...]) -> None:
    """Draw each recipe on axes of its own."""
    with drawing():
        figure, grid = new_figure("", len(names), num_columns=3)
        for axes, name in zip(grid, names, strict=True):
            draw_recipe(axes, name)
    save(figure, PICTURE, (9.0, 4.6))


def draw_recipe(axes: Axes, name: str) -> None:
    """Draw the runs, their interquartile mean with its interval, and the published score."""
    recipe, curves = rl.recipes.get(name), [run["curve"] for run in runs_of(name).values()]
    steps, scores = curves[0]["env_step"], np.array([curve["score"] for curve in curves])  # [R, K]
    by_step = scores.T[:, :, None]
    low, high = rl.scores.bootstrap_interval(rl.scores.interquartile_mean, by_step)
    for of_seed in scores:
        axes.plot(steps, of_seed, color=line(0)["color"], linewidth=0.4, alpha=0.4)
    axes.fill_between(steps, low, high, color=line(0)["color"], alpha=0.25, linewidth=0)
    axes.plot(steps, rl.scores.interquartile_mean(by_step), **line(0), label=f"rltrainer, {len(scores)} seeds")
    if recipe.published_score is not None:
        text = f"{recipe.source}: {recipe.published_score:g}"
        axes.axhline(recipe.published_score, color=GREY, linestyle="dashed", linewidth=1.2, label=text)
    count_steps(axes, "env steps")
    axes.set_title(name, size=9)
    axes.legend(loc="lower right", fontsize=7)


if __name__ == "__main__":
    main()
