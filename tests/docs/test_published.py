"""README's learning curve: its numbers are those of benchmarks/, and its text is what they say."""

import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import rltrainer as rl
from pictures import published

ROOT = Path(__file__).parents[2]
CURVE = json.loads(published.STORE.read_text())
SCORES = json.loads((ROOT / "benchmarks" / "recipes.json").read_text())


@pytest.mark.parametrize("page", ["README.md", "docs/guides/recipes.md"])
def test_the_figures_are_measured_ones(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    pattern = (
        r"The recipe `(\S+)` with three seeds: (\S+) is the mean .* \(([\d., ]+)\)\. RL Zoo published (\S+), for one"
    )
    [(name, mean, by_seed, score)] = re.findall(pattern, text)
    scores = SCORES[name]["scores"]
    assert name == CURVE["recipe"]
    assert [float(each) for each in by_seed.split(", ")] == scores
    assert float(mean) == round(statistics.mean(scores), 1)
    recipe = rl.recipes.get(name)
    assert float(score) == recipe.published_score
    assert recipe.published_as == "LunarLander-v2, one run of 1M steps"
    assert re.findall(r"Of the recipes, (\d+) have been measured", text) == [str(len(SCORES))]


def test_the_curve_is_of_whole_runs_by_seed() -> None:
    assert list(CURVE["returns"]) == [str(seed) for seed in published.SEEDS]
    assert {len(returns) for returns in CURVE["returns"].values()} == {len(CURVE["steps"])}
    assert CURVE["steps"][-1] > 0.95 * rl.recipes.get(CURVE["recipe"]).num_env_steps
    assert len(CURVE["returns"]) == len(SCORES[CURVE["recipe"]]["scores"])


@pytest.mark.full
def test_the_picture_is_drawn_from_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = tmp_path / "drawn.png"
    monkeypatch.setattr(published, "PICTURE", drawn)
    published.draw(CURVE)
    with Image.open(drawn) as ours, Image.open(ROOT / "docs" / "images" / "published.png") as theirs:
        assert ours.size == theirs.size
        difference = np.asarray(ours.convert("L"), float) - np.asarray(theirs.convert("L"), float)
    assert np.abs(difference).mean() < 1  # another line changes it by more, another version of Matplotlib by less
