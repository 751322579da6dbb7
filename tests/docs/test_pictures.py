"""Pictures of the docs: films play at the speed of their envs, examples have one each, README's curve is measured."""

import re
import statistics
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import rltrainer as rl
from benchmarks import recipes
from pictures import films, gallery, published

ROOT = Path(__file__).parents[2]
FILMS = sorted((ROOT / "docs").rglob("*.gif"))
NAMES = sorted(path.stem for path in gallery.EXAMPLES.glob("*.py"))


def test_every_film_of_the_docs_moves() -> None:
    assert ROOT / "docs" / "images" / "lander.gif" in FILMS
    assert len(FILMS) >= 6
    for path in FILMS:
        frames, milliseconds = films.read(path)
        assert len(frames) > 20, path
        assert 20 <= statistics.median(milliseconds) <= 150, path  # 7 to 50 frames a second
        assert max(milliseconds[:-1]) <= 500, path  # equal frames are one frame that is shown for longer
        assert sum(milliseconds) <= 15_000, path
        if path.name == "lander.gif":  # smooth, and its still is the end
            assert (set(milliseconds[:-1]), frames[0].tobytes()) == ({40}, frames[-1].tobytes())


def test_a_film_keeps_its_pace_with_fewer_frames_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbered = [Image.new("RGB", (8, 8), (50 * number, 0, 0)) for number in range(5)]
    films.write(tmp_path / "film.gif", numbered[:3], 66.7)
    frames, milliseconds = films.read(tmp_path / "film.gif")
    assert len(frames) == 3
    assert milliseconds == [70, 70, 1000]  # hundredths of a second, rounded; then it stands still

    def record(player: str, env: gym.Env, path: Path, *, seed: int) -> None:
        numbered[0].save(path, save_all=True, append_images=numbered[1:], duration=[30, 30, 40, 30, 1000])

    class Still(gym.Env):
        def render(self) -> np.ndarray:
            return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr(films.rl, "record", record)
    monkeypatch.setattr(films.gym, "make", lambda env, render_mode: Still())
    frames, milliseconds = films.filmed("a policy", "an env", every=2, seed=1)
    assert len(frames) == 3
    assert milliseconds == pytest.approx(65)  # of 30, 30, 40, 30; the end stands still


def test_every_example_has_one_small_picture() -> None:
    for name in NAMES:
        found = list(gallery.IMAGES.glob(f"{name}.*"))
        assert len(found) == 1, f"make its picture: python -m pictures.gallery {name}"
        assert found[0].stat().st_size < 300_000, name
        with Image.open(found[0]) as image:
            assert image.width <= 700, name
            assert len(image.convert("RGB").getcolors(1 << 24)) > 1, f"{name}: blank"


def test_the_gallery_is_of_these_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = gallery.PAGE.read_text()
    assert text == gallery.page(), "write the page: python -m pictures.gallery --page"
    assert [name for name in NAMES if f"images/gallery/{name}." not in text] == []
    assert len(NAMES) >= 18
    assert {path.stem for path in gallery.IMAGES.iterdir()} == set(NAMES)
    (tmp_path / "new.py").write_text('"""A new one.\n\nMore of it.\n"""\n')
    monkeypatch.setattr(gallery, "EXAMPLES", tmp_path)
    assert "\n## More\n\n### `new.py`\n\nA new one.\n\n<details" in gallery.page()  # one without a group


def test_every_picture_of_the_docs_is_on_a_page() -> None:
    docs = gallery.PAGE.parent
    text = "".join(page.read_text() for page in docs.rglob("*.md"))
    shown = [path for path in (docs / "images").rglob("*") if path.suffix in (".png", ".gif")]
    assert [path.name for path in shown if path.relative_to(docs / "images").as_posix() not in text] == []
    assert len(shown) > 30


@pytest.mark.parametrize("page", ["README.md", "docs/guides/recipes.md"])
def test_the_figures_are_measured_ones(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    pattern = (
        r"`(trpo/Acrobot-v1)` comes to (\S+) \((\S+) to (\S+)\) .* RL Zoo published (\S+), for one run of 100k steps"
    )
    [(name, *numbers, score)] = re.findall(pattern, text)
    runs, recipe = recipes.runs_of(name), rl.recipes.get(name)
    assert numbers == [f"{value:.1f}" for value in recipes.interval([run["score"] for run in runs.values()])]
    assert (float(score), "one run of 100k steps") == (recipe.published_score, recipe.published_as)
    files = [len(recipes.runs_of(name)) for name in rl.recipes.names()]
    assert {*files} == {0, 10}
    assert f"Of the recipes, {files.count(10)} have ten measured runs." in text


def test_the_curves_are_of_whole_runs() -> None:
    for name in published.RECIPES:
        runs = recipes.runs_of(name)
        assert list(runs) == list(recipes.SEEDS)
        assert {run["curve"]["env_step"][-1] >= rl.recipes.get(name).num_env_steps for run in runs.values()} == {True}


@pytest.mark.full
def test_the_curve_is_drawn_from_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = tmp_path / "drawn.png"
    monkeypatch.setattr(published, "PICTURE", drawn)
    published.draw(published.RECIPES)
    with Image.open(drawn) as ours, Image.open(ROOT / "docs" / "images" / "published.png") as theirs:
        assert ours.size == theirs.size
        difference = np.asarray(ours.convert("L"), float) - np.asarray(theirs.convert("L"), float)
    assert np.abs(difference).mean() < 1  # another line changes it by more, another version of Matplotlib by less
