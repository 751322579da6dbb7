"""The page of a run, looked at in Chromium: everything on it is drawn, nothing is fetched, and nothing runs."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rltrainer as rl
from rltrainer.tools.plots import page
from tests.browser.conftest import Tab

playwright = pytest.importorskip("playwright.sync_api")

NAME = "<script>document.title = 'ran'<b>"
COLOR = "#12ab34"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a run of PPO whose name is a script, and that has two videos."""
    rl.seed(1)
    envs = rl.make_vec("CartPole-v1", num_envs=4)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=(8,)))
    run = rl.RunFolder.new(NAME, tmp_path_factory.mktemp("runs"))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        test_collector=rl.Collector(algorithm.policy, rl.make_vec("CartPole-v1", num_envs=2, seed=2)),
        max_epochs=3, epoch_num_steps=256, collection_step_num_env_steps=128, seed=1, verbose=False,
        logger=run.logger("jsonl", training_interval=128), runtime=rl.RuntimeParams(compile=False), show_progress=False,
    )  # fmt: skip
    rl.OnPolicyTrainer(algorithm, params).run()
    run.videos.mkdir()
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    frame = Image.new("RGB", (64, 48), COLOR)  # a film of one colour, as MP4 and as GIF
    film = ffmpeg.write_frames(str(run.videos / "step #1.mp4"), (64, 48), fps=5)
    film.send(None)
    for _ in range(5):
        film.send(frame.tobytes())
    film.close()
    frame.save(run.videos / "100%.gif")
    return page(run.path)


@pytest.fixture(params=[1000, 390], ids=["desk", "phone"])
def tab(browser: Any, written: Path, request: pytest.FixtureRequest) -> Iterator[Tab]:
    opened = Tab(browser, written, request.param)
    yield opened
    opened.context.close()


def pixels(tab: Tab, selector: str) -> np.ndarray:
    """Return what is seen of an element, [H, W, 3]."""
    element = tab.page.locator(selector).first
    element.scroll_into_view_if_needed()
    return np.asarray(Image.open(io.BytesIO(element.screenshot())).convert("RGB")).astype(int)


def share_of(pixels: np.ndarray, color: str, tolerance: int = 24) -> float:
    """Return the share of pixels that have a colour."""
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
    return float((np.abs(pixels - wanted).max(axis=-1) <= tolerance).mean())


def test_it_opens_from_disk_without_a_complaint(tab: Tab, written: Path) -> None:
    tab.page.wait_for_function("document.querySelector('video').readyState >= 1")
    assert tab.complaints == []
    folder = written.parent.as_uri()
    assert {url for url in tab.requests if not url.startswith(("data:", folder))} == set()


def test_texts_of_the_run_are_shown_and_not_run(tab: Tab) -> None:
    assert tab.page.title() == tab.page.locator("h1").inner_text() == "PPO on CartPole-v1, seed 1"
    assert NAME in tab.page.locator("body").inner_text()  # the folder
    assert tab.page.evaluate("document.scripts.length") == 0
    assert "finished: max_epochs" in tab.page.locator(".status").inner_text()
    tab.page.add_style_tag(content="h1 { color: red }")  # styles may be there, and a script may not:
    with pytest.raises(playwright.Error, match="Content Security Policy"):
        tab.page.add_script_tag(content="document.title = 'ran'")


def test_pictures_are_drawn(tab: Tab) -> None:
    sizes = tab.page.evaluate("[...document.querySelectorAll('img')].map(each => [each.complete, each.naturalWidth])")
    assert len(sizes) == 4  # returns, training, update, the GIF
    assert all(is_complete and width > 0 for is_complete, width in sizes)
    seen = pixels(tab, "img.picture")
    assert 0.85 < share_of(seen, "#ffffff") < 0.999
    # Test and training, however thin their lines are: much more blue than red, and the other way round.
    assert ((seen[..., 2] - seen[..., 0]) > 60).sum() > 30
    assert ((seen[..., 0] - seen[..., 2]) > 60).sum() > 30


def test_videos_are_shown(tab: Tab) -> None:
    tab.page.wait_for_function("document.querySelector('video').readyState >= 2")
    assert tab.page.evaluate("document.querySelector('video').videoWidth") == 64
    assert share_of(pixels(tab, "img.video"), COLOR) > 0.9
    for _ in range(50):  # a busy machine paints the first frame later than it has it
        if share_of(pixels(tab, "video"), COLOR) > 0.5:  # the rest is its controls
            return
        tab.page.wait_for_timeout(100)
    pytest.fail("the video shows no frame")


def test_nothing_is_wider_than_the_window_and_params_can_be_opened(tab: Tab) -> None:
    assert tab.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    fields = tab.page.get_by_text("collection_step_num_env_steps", exact=True)
    assert not fields.is_visible()
    tab.page.get_by_text("trainer", exact=True).click()
    assert fields.is_visible()
