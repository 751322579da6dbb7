"""A run's folder read back, as a trainer wrote it, while it trains and where it is damaged."""

import dataclasses
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.loggers.run_folder import git_state
from tests.resume.runs import build
from tests.unit.tools.refusals import error_text, refuses


def train(path: Path, *names: Any, max_epochs: int = 3, **fields: Any) -> rl.InfoStats:
    """Train a small PPO in a folder: three epochs of two collections of 10 env steps."""
    folder = rl.RunFolder(path)
    trainer = build("ppo", logger=folder.logger(*names, training_interval=1))
    fields |= {"save_best_fn": folder.save_best, "max_epochs": max_epochs}
    return rl.OnPolicyTrainer(trainer.algorithm, dataclasses.replace(trainer.params, **fields)).run()


@pytest.mark.parametrize("names", [(), ("jsonl",), ("csv", "tensorboard")])
def test_what_was_written_is_read_back(names: tuple[str, ...], tmp_path: Path) -> None:
    result = train(tmp_path / "ppo", *names)
    run = rl.open_run(tmp_path / "ppo")
    assert (run.name, run.algorithm_class, run.command) == ("ppo", "PPO", shlex.join(sys.orig_argv))
    found = run.trainer["max_epochs"], run.algorithm["gamma"], run.runtime["compile"], run.versions["rltrainer"]
    assert found == (3, 0.99, False, rl.__version__)
    assert run.kinds == ["test", "training", "update", "epoch"]
    tests = run.rows("test")
    assert list(tests) == ["step", "score", "return", "length"]
    assert tests["step"].tolist() == [0, 20, 40, 60]
    scores = [stats.test_stats.returns.mean() for stats in result.epochs if stats.test_stats is not None]
    assert np.allclose(tests["score"][1:], scores)
    assert run.rows("training")["step"].tolist() == [10, 20, 30, 40, 50, 60]
    assert run.rows("epoch")["best_score"].tolist() == [result.best_score] * 3
    assert len(run.rows("update")["lr"]) == 6
    assert {run.rows(kind)["step"].dtype for kind in run.kinds} == {np.dtype(np.int64)}
    assert {column.dtype for column in tests.values()} == {np.dtype(np.int64), np.dtype(np.float64)}
    assert type(run.load_best()) is rl.PPO
    assert {key: column.tolist() for key, column in run.rows("nothing").items()} == {"step": []}


def test_a_number_that_a_row_has_not_is_nan(tmp_path: Path) -> None:
    logger = rl.JSONLinesLogger(tmp_path / "logs" / "log.jsonl")
    logger.log("mine", {"depth": 1.5}, 10)
    logger.log("mine", {"height": 2, "depth": float("inf")}, 20)
    logger.close()
    run = rl.open_run(tmp_path)
    mine = {name: column.tolist() for name, column in run.rows("mine").items()}
    assert mine["step"] == [10, 20]
    assert mine["depth"] == [1.5, float("inf")]
    assert str(mine["height"]) == "[nan, 2.0]"
    assert (run.params, run.trainer, run.algorithm, run.versions) == ({}, {}, {}, {})
    assert (run.algorithm_class, run.command, run.git, run.stop_reason) == (None, None, None, None)


def test_a_folder_without_json_lines_says_which_logger_to_add(tmp_path: Path) -> None:
    logger = rl.CSVLogger(tmp_path / "logs" / "log.csv")
    logger.log("mine", {"depth": 1.0}, 10)
    text = f"{tmp_path}/logs/log.jsonl: expected JSON lines, the log that is read back; found log.csv. Log JSON lines"
    refuses(CheckpointError, re.escape(text), rl.open_run(tmp_path).rows, "mine")
    refuses(CheckpointError, re.escape(text), rl.plots.page, tmp_path)


def test_a_run_that_trains_can_be_looked_at_and_the_newest_is_read(tmp_path: Path) -> None:
    looks: list[tuple[bool, str | None, int]] = []

    def look(epoch: int, env_step: int) -> None:
        run = rl.open_run(tmp_path)
        looks.append((run.is_finished, run.stop_reason, len(run.rows("epoch")["step"])))

    train(tmp_path, "jsonl", training_fn=look)
    assert looks == [(False, None, num_epochs) for num_epochs in (0, 0, 1, 1, 2, 2)]
    with open(tmp_path / "logs" / "log.jsonl", "ab") as file:
        file.write(b'{"kind": "epoch", "st')  # being written
    assert rl.open_run(tmp_path).stop_reason == "max_epochs"
    train(tmp_path, "jsonl", max_epochs=1)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["log-2.jsonl", "log.jsonl"]
    run = rl.open_run(tmp_path)
    assert (run.trainer["max_epochs"], run.rows("epoch")["epoch"].tolist()) == (1, [1])


def test_the_end_is_known_from_the_log_and_better_from_a_checkpoint(tmp_path: Path) -> None:
    train(tmp_path / "a", "csv", stop_fn=lambda score: True)
    assert rl.open_run(tmp_path / "a").stop_reason == "stop_fn"
    never_better = rl.EarlyStopping(patience=1, min_delta=1e9)
    for name, checkpoint, expected in (
        ("b", None, None),
        ("c", rl.CheckpointParams(tmp_path / "c" / "checkpoints"), "hook: score has not improved on 5 in 1 looks"),
    ):
        train(tmp_path / name, "csv", hooks=[never_better], checkpoint=checkpoint)
        run = rl.open_run(tmp_path / name)
        assert (run.newest_checkpoint is None) == (checkpoint is None)
        assert run.stop_reason == expected


def test_a_run_that_a_signal_ended_may_go_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(
            tmp_path, "jsonl", checkpoint=rl.CheckpointParams(tmp_path / "checkpoints"),
            training_fn=lambda epoch, env_step: os.kill(os.getpid(), signal.SIGINT) if env_step == 30 else None,
        )  # fmt: skip
    run = rl.open_run(tmp_path)
    assert run.newest_checkpoint == tmp_path / "checkpoints" / "checkpoint-000000000040"
    assert (run.stop_reason, run.is_finished) == (None, False)


@pytest.mark.parametrize(("line", "expected"), [
    ("{", "a row in JSON"), ('{"kind": "test", "step": 1, "step": 2}', "a row in JSON"),
    *((line, "a row of kind, step and numbers") for line in (
        "[1]", '{"kind": "test", "step": true}', '{"kind": "test", "step": 1, "a": "b"}', '{"kind": "test", "a": 1}',
    )),
])  # fmt: skip
def test_a_damaged_row_is_named(line: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "logs" / "log.jsonl"
    path.parent.mkdir()
    path.write_text(f'{{"kind": "test", "step": 1, "test/score": 2}}\n{line}\n')
    said = error_text(CheckpointError, rl.open_run(tmp_path).rows, "test")
    assert said == f"{path}, line 2: expected {expected}, found {line!r}"


def test_a_path_that_is_no_runs_and_the_run_meant_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuses(rl.errors.ParamsError, r"^open_run.folder: must be a path; got 3 \(int\)", rl.open_run, 3)
    monkeypatch.chdir(tmp_path)
    for name in ("ppo", "sac"):
        (tmp_path / "runs" / name / "logs").mkdir(parents=True)
    (tmp_path / "runs" / "sac" / "best.safetensors").touch()
    for path, words in {
        "sac": "it is no folder. Did you mean 'runs/sac'?",
        "runs": "it holds neither params.json nor logs. Did you mean 'runs/ppo'?",
        "runs/sac/best.safetensors": "it is a file. Did you mean 'runs/sac'?",
        "pyproject.toml": "it is no folder",
        "runs/sac/logs": "it holds neither params.json nor logs",
    }.items():
        said = error_text(CheckpointError, rl.open_run, path)
        assert said == f"{path}: expected the folder of a run, as rl.RunFolder makes it; {words}"


def test_videos_and_pictures_are_found(tmp_path: Path) -> None:
    for name in ("logs/log.jsonl", "videos/b.mp4", "videos/a.gif", "videos/notes.txt", "curve.png", "page.html"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    run = rl.open_run(tmp_path)
    assert [path.name for path in run.videos] == ["a.gif", "b.mp4"]
    assert [path.name for path in run.pictures] == ["curve.png", "page.html"]


@pytest.mark.parametrize(("text", "found"), [("[1]", "found [1]"), ("{", "as JSON (Expecting")])
def test_damaged_params_are_named(text: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(text)
    said = error_text(CheckpointError, rl.open_run, tmp_path)
    assert said.startswith(f"{tmp_path / 'params.json'}: expected the params of a run")
    assert found in said
    (tmp_path / "params.json").write_text('{"trainer": 3, "versions": [], "command": 4, "algorithm_class": []}')
    run = rl.open_run(tmp_path)
    assert (run.trainer, run.versions, run.command, run.algorithm_class) == ({}, {}, None, None)


def test_the_state_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert git_state() is None

    def git(*args: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert git_state() is None  # no commit
    file = tmp_path / "file"
    file.write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert git_state() == {"commit": commit, "dirty": False}
    (tmp_path / "another").write_text("untracked")
    assert git_state() == {"commit": commit, "dirty": False}
    file.write_text("two")
    assert git_state() == {"commit": commit, "dirty": True}
    file.write_text("one")
    folder = rl.RunFolder(tmp_path / "run")
    folder.logger().log_params({"a": 1})
    assert json.loads(folder.params.read_text()) == {"a": 1, "git": {"commit": commit, "dirty": False}}
    assert rl.open_run(tmp_path / "run").git == {"commit": commit, "dirty": False}
    git("config", "core.fsmonitor", f"touch {tmp_path / 'ran'}; false")
    assert git_state() is not None
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("PATH", "")
    assert git_state() is None
