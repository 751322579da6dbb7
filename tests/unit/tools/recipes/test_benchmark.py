"""The table of recipes: complete, as the files of its runs say; and the program behind it."""

import json
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from benchmarks import recipes


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without files of runs."""
    monkeypatch.setattr(recipes, "MEASURED", tmp_path)
    return tmp_path


def write(name: str, seed: int, score: float, scores: list[float], seconds: float, **changes: Any) -> None:
    steps = [1000 * (i + 1) for i in range(len(scores))]
    times = [seconds * (i + 1) / len(scores) for i in range(len(scores))]
    curve = {"env_step": steps, "score": scores, "processor_seconds": times}
    run = {"score": score, "curve": curve, "processor_seconds": seconds, "date": "2026-11-28"}
    path = recipes.file_of(name, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run | {"settings": recipes.settings(name)} | changes))


def row_of(name: str) -> str:
    return next(line for line in recipes.table().splitlines() if line.startswith(f"| `{name}`"))


def test_the_page_is_what_the_files_say() -> None:
    assert recipes.REPORT.read_text() == recipes.table()
    names = {path.parent.relative_to(recipes.MEASURED).as_posix() for path in recipes.MEASURED.rglob("*.json")}
    assert names <= set(rl.recipes.names())


def test_a_row_has_measured_and_published_scores(files: Path) -> None:
    name = "dqn/CartPole-v1"
    for seed, score in ((1, 500.0), (2, 490.0), (3, 100.0), (4, 480.0)):
        write(name, seed, score, [9.0, score], 12.0)
    start = "| `dqn/CartPole-v1` | 50,000 | RL Zoo | 500 (one run of 50k steps) | 485.0 |"  # a quarter cut at each end
    assert row_of(name).startswith(start)
    assert row_of(name).endswith("| 500.0, 490.0, 100.0, 480.0 | 12 | 2026-11-28 |")
    write(name, 4, 480.0, [9.0], 12.0, settings={"recipe": {}, "weights": 0.0})
    assert row_of(name).startswith("| `dqn/CartPole-v1` † |")
    assert recipes.missing([name], 5) == [(name, 4), (name, 5)]


def test_recipes_of_an_env_are_compared_where_one_ends(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "LEAST", 1)
    write("dqn/CartPole-v1", 1, 0.0, [10.0, 20.0, 500.0], 30.0)
    write("ppo/CartPole-v1", 1, 0.0, [50.0, 60.0], 10.0)
    assert recipes.side_by_side().splitlines()[2:] == [
        "| CartPole-v1 | 2,000 env steps | ppo 60.0, dqn 20.0 |",
        "| CartPole-v1 | 3,000 env steps | dqn 500.0, ppo 60.0 |",
        "| CartPole-v1 | 10 s | ppo 60.0, dqn 10.0 |",
        "| CartPole-v1 | 30 s | dqn 500.0, ppo 60.0 |",
    ]
    assert recipes.apart([30.0, 10.0, 12.0, 36.0, 40.0]) == [10.0, 30.0, 40.0]


def test_a_run_writes_its_file(files: Path) -> None:
    path = recipes.measure([("ppo/CartPole-v1", 1)], 0, num_env_steps=512)
    found = json.loads(path.read_text())
    assert path == files / "ppo/CartPole-v1/1.json"
    assert 8 < found["score"] < 500
    assert found["curve"]["env_step"][-1] == 512
    assert found["settings"] == recipes.settings("ppo/CartPole-v1")
    assert found.keys() >= {"seconds", "date", "commit", "versions", "machine", "load", "failed"}
    assert recipes.missing(["ppo/CartPole-v1"], 1) == []
