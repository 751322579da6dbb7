"""The page of a run: what it says, that it is whole, and that texts of a log stay texts."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

import rltrainer as rl
from rltrainer.tools.plots import html_page, page
from tests.unit.tools.plots.conftest import MakeRun, Rows, returns

ROWS: Rows = {
    **returns(20.0, 200.0),
    "training": [(100, {"return": 30.0, "env_steps_per_second": 5000.0})],
    "update": [(50, {"loss": 1.0}), (100, {"loss": 0.5})],
    "epoch": [(100, {"epoch": 1, "env_step": 100, "best_score": 200.0, "best_epoch": 1, "is_stopped": 0})],
}


class Parsed(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(path.read_text())
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words += data + " "

    @property
    def text(self) -> str:
        return " ".join(self.words.split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def test_what_a_page_says(make_run: MakeRun) -> None:
    run = make_run(ROWS, "cartpole", lr={"schedule": "LinearSchedule", "start": 0.1, "end": 0.0}, entropy_coef=None)
    path = page(run.folder.path)
    assert path == run.folder.path / "page.html"
    parsed = Parsed(path)
    for text in (
        "PPO, seed 1 not finished algorithm PPO", "best score 200 (epoch 1)", "env steps 100", "epochs 1 of 2",
        "seed 1 folder cartpole", "Returns Training Update Timing collection alone 5,000 env steps/s", "torch 2.13.0",
        "lr LinearSchedule(start=0.1, end=0.0) entropy_coef None", "training_collector Collector",
        "command python train.py",
    ):  # fmt: skip
        assert text in parsed.text
    assert [image["alt"] for image in parsed.all("img")] == [
        "learning curve: mean return of test and training episodes over steps",
        "training: return, env_steps_per_second",
        "update: loss",
    ]
    assert all((image["src"] or "").startswith("data:image/svg+xml;base64,") for image in parsed.all("img"))
    # Nothing may run or be fetched.
    policies = [meta["content"] for meta in parsed.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    rule = "default-src 'none'; style-src 'unsafe-inline'; img-src data: 'self' file:; media-src 'self' file:"
    assert policies == [rule]
    assert "http" not in path.read_text().replace("http-equiv", "")


def test_what_tests_tell_beside_returns_has_a_picture(make_run: MakeRun) -> None:
    """A success rate, and a score of one's own; returns, and a score that is the return, are in the first picture."""
    test = [(step, {"score": 9.0, "return": 9.0 * step, "length": 3.0, "is_success": 0.5}) for step in (1, 2)]
    alts = [image["alt"] for image in Parsed(page(make_run({"test": test}))).all("img")]
    assert alts[1:] == ["test: score, is_success"]
    same = [(step, {**row, "score": row["return"]}) for step, row in test]
    alts = [image["alt"] for image in Parsed(page(make_run({"test": same}))).all("img")]
    assert alts[1:] == ["test: is_success"]


@pytest.mark.parametrize(("epoch", "is_stopped", "words"), [
    (None, 0, "not finished"), (1, 0, "not finished"), (1, 1, "finished: stop_fn"), (2, 0, "finished: max_ep"),
])  # fmt: skip
def test_it_says_how_a_run_ended(epoch: int | None, is_stopped: int, words: str, make_run: MakeRun) -> None:
    row = {"epoch": float(epoch or 0), "env_step": 100.0, "is_stopped": float(is_stopped)}
    parsed = Parsed(page(make_run({} if epoch is None else {"epoch": [(100, row)]})))
    assert f"PPO, seed 1 {words}" in parsed.text
    assert parsed.all("img") == []
    assert "Returns" not in parsed.text


def test_videos_are_named_by_their_place_beside_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(ROWS)
    run.folder.videos.mkdir()
    for name in ("step 100 #1.mp4", "100%.gif", "notes.txt", "b'\"<>&.webm"):
        (run.folder.videos / name).write_bytes(b"")
    parsed = Parsed(page(run))
    found = parsed.all("video")
    assert [video["src"] for video in found] == ["videos/b%27%22%3C%3E%26.webm", "videos/step%20100%20%231.mp4"]
    assert all("controls" in video for video in found)
    assert parsed.all("img")[1] == {"class": "video", "alt": "100%.gif", "src": "videos/100%25.gif"}
    assert "notes.txt" not in parsed.text
    # Written again it is the same page, and elsewhere the same with other places.
    first, again, elsewhere = page(run), page(run), page(run, tmp_path / "pages" / "a.html")
    assert first == again
    assert first.read_text().replace('"videos/', '"../runs/run/videos/') == elsewhere.read_text()


EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;"


def test_texts_of_a_run_stay_texts(make_run: MakeRun) -> None:
    run = make_run({**ROWS, "update": [(0, {EVIL: 1.0})], "mine": [(0, {"a": 1.0})]}, "<script>alert(0)<b>", EVIL)
    told = {**run.params, "command": EVIL, "versions": {EVIL: EVIL}, "git": {"commit": EVIL}, "runtime": EVIL}
    told["trainer"] = {"fields": {EVIL: {"live": EVIL}, "seed": EVIL, "lr": {"schedule": EVIL, EVIL: EVIL}}}
    run = rl.Run(run.folder, told)
    run.folder.videos.mkdir()
    (run.folder.videos / (EVIL.replace("/", "") + ".gif")).write_bytes(b"")
    path = page(run)
    parsed = Parsed(path)
    assert "script" not in {tag for tag, _ in parsed.tags}
    names = {name for _, attrs in parsed.tags for name in attrs}
    assert not any(name.startswith("on") for name in names)
    assert len(parsed.all("img")) == 5  # four pictures and the video
    assert parsed.text.count(EVIL) >= 9
    assert parsed.text.startswith(f"{EVIL} {EVIL} not finished")
    assert "folder <script>alert(0)<b>" in parsed.text


@pytest.mark.parametrize("told", [
    {"trainer": 3, "algorithm": [], "versions": None, "git": "a", "command": 7, "algorithm_class": {}},
    {"algorithm": {"fields": {"a": {"b": [{"c": None}]}, "live": {"live": 3}, "x": {"params": "X", "fields": 4}}}},
    {"trainer": {"fields": {"seed": [1], "max_epochs": "many", "long": "x" * 10_000}}},
])  # fmt: skip
def test_whatever_a_run_was_told_has_a_page(told: dict[str, object], make_run: MakeRun) -> None:
    assert "not finished" in Parsed(page(rl.Run(make_run(ROWS).folder, told))).text


def test_a_run_with_checkpoints_tells_its_timing(tmp_path: Path) -> None:
    rl.seed(1)
    envs = rl.make_vec("CartPole-v1", num_envs=2)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=(4,)))
    run = rl.RunFolder.new("run", tmp_path)
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs), max_epochs=1, epoch_num_steps=64,
        collection_step_num_env_steps=64, logger=run.logger("csv"), checkpoint=rl.CheckpointParams(run.checkpoints),
        runtime=rl.RuntimeParams(compile=False), verbose=False, show_progress=False,
    )  # fmt: skip
    result = rl.OnPolicyTrainer(algorithm, params).run()
    text = Parsed(page(run.path)).text
    assert f"Timing total {result.timing.total:.3g} s collect {result.timing.collect:.3g} s update" in text
    assert f"all together {64 / result.timing.total:,.0f} env steps/s collection alone" in text


@pytest.mark.parametrize(("seconds", "text"), [
    (0.0, "0 s"), (3.7331, "3.73 s"), (59.96, "60 s"), (125.4, "2 min 5 s"), (3600, "1 h 0 min"),
    (100_000, "27 h 46 min"),
])  # fmt: skip
def test_durations_are_read_as_people_read_them(seconds: float, text: str) -> None:
    assert html_page._duration(seconds) == text


def test_rows_are_not_read_anew_for_each_number(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run, kinds, rows = make_run({"update": [(0, {f"number_{i}": 1.0 for i in range(20)})]}), [], rl.Run.rows
    monkeypatch.setattr(rl.Run, "rows", lambda run, kind: kinds.append(kind) or rows(run, kind))
    page(run)
    assert kinds.count("update") == 1
