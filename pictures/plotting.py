"""The pictures of the page "Plotting", of the runs of examples/compare_algorithms.py; the page of one in a browser.

    python -m pictures.plotting                 trains them first, some two minutes
    python -m pictures.plotting --runs FOLDER   of runs that are there

Writes docs/images/learning_curve.png and its neighbours.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import rltrainer as rl
from pictures.figures import save, save_few_colors

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TASKS = {"CartPole-v1": (20.0, 500.0), "Acrobot-v1": (-500.0, -80.0)}
"""As the example has them."""
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
WIDTH = 720
"""Pixels of the window."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="what the example has written")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs = args.runs or Path(temporary) / "compare"
        if args.runs is None:
            command = [sys.executable, ROOT / "examples" / "compare_algorithms.py", "--out", runs]
            subprocess.run(command, check=True)
        run = Path(shutil.copytree(runs / "PPO" / "CartPole-v1" / "2", Path(temporary) / "PPO"))  # named for its title
        draw(runs, run)
        rl.record(run, "CartPole-v1", rl.RunFolder(run).videos / "best.mp4", seed=1)
        save_few_colors(screenshot(rl.plots.page(run)), IMAGES / "run_page.png", 255)


def draw(runs: Path, run: Path) -> None:
    """Draw all runs, and one of them."""
    folders = {name: {env: sorted((runs / name / env).iterdir()) for env in TASKS} for name in ("PPO", "A2C")}
    scores = {name: rl.plots.run_scores(tasks, TASKS) for name, tasks in folders.items()}
    of_cartpole = {name: tasks["CartPole-v1"] for name, tasks in folders.items()}
    save(rl.plots.learning_curve(run), IMAGES / "learning_curve.png", (6.4, 3.8))
    save(rl.plots.metrics(run), IMAGES / "metrics.png", (7.5, 5.0))
    curves = rl.plots.learning_curves(of_cartpole, title="CartPole-v1")
    save(curves, IMAGES / "learning_curves.png", (6.4, 3.8))
    save(rl.plots.performance_profiles(scores), IMAGES / "performance_profiles.png", (6.4, 3.8))
    save(rl.plots.aggregate_scores(scores), IMAGES / "aggregate_scores.png", (9.2, 1.8))
    save(rl.plots.probability_of_improvement(scores), IMAGES / "probability_of_improvement.png", (6.4, 1.4))


def screenshot(page: Path) -> Image.Image:
    """Return what a browser shows of a page, down to the pictures of training."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = running.new_page(viewport={"width": WIDTH, "height": 800})
        tab.goto(page.as_uri())
        tab.wait_for_function("document.querySelector('video').readyState >= 2")
        tab.wait_for_timeout(2000)  # its wheel turns as long as it is being read
        box = tab.locator("img[alt^=training]").bounding_box()
        height = 800 if box is None else box["y"] + box["height"]
        seen = tab.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        running.close()
    return Image.open(io.BytesIO(seen))


if __name__ == "__main__":
    main()
