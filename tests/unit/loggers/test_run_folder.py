"""The folder of a run: its paths, its params, names that are taken; loggers by their names."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from tests.resume.runs import build, digest


def test_the_paths_of_a_run(tmp_path: Path) -> None:
    run = rl.RunFolder.new("cartpole", root=tmp_path / "runs")
    assert run == rl.RunFolder(folder=str(tmp_path / "runs" / "cartpole"))
    names = {name: getattr(run, name) for name in ("params", "logs", "best", "checkpoints", "videos")}
    assert {name: str(path.relative_to(run.path)) for name, path in names.items()} == {
        "params": "params.json", "logs": "logs", "best": "best.safetensors", "checkpoints": "checkpoints",
        "videos": "videos",
    }  # fmt: skip
    assert list(run.path.iterdir()) == []


def test_processes_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    program = (
        "import sys; from rltrainer.loggers import RunFolder; print('ready', flush=True); sys.stdin.readline()\n"
        "for _ in range(50): print(RunFolder.new('run', sys.argv[1]).path.name)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    names = [name for process in both for name in process.communicate()[0].split()]
    assert len(names) == 100
    assert set(names) == {"run", *(f"run-{number}" for number in range(2, 101))}


def test_a_run_in_its_folder(tmp_path: Path) -> None:
    def made(run: rl.RunFolder, *names: Any, max_epochs: int = 3) -> Any:
        return build("ppo", max_epochs, run.logger(*names, training_interval=1), save_best_fn=run.save_best)

    run = rl.RunFolder.new("ppo", tmp_path)
    trainer = made(run, "csv")
    trainer.run()
    trainer.save(run.checkpoints / "last")
    files = sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file())
    assert [file for file in files if "checkpoints" not in file] == [
        "best.safetensors", "logs/log.csv", "logs/log.csv.params.json", "logs/log.csv.progress.json",
        "logs/log.jsonl", "params.json"
    ]  # fmt: skip
    told = json.loads(run.params.read_text())
    assert list(told) == ["trainer", "algorithm", "runtime", "algorithm_class", "versions", "command", "devices", "git"]
    assert told["trainer"] == json.loads(trainer.params.to_json())
    assert type(rl.load(run.best)) is rl.PPO
    again = made(rl.RunFolder(run.path), "csv", "jsonl", max_epochs=4)
    again.restore(run.checkpoints / "last")
    again.run()
    after = sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file())
    assert after == files
    steps = [json.loads(line) for line in (run.logs / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in steps if row["kind"] == "training"] == [10, 20, 30, 40, 50, 60, 70, 80]


def test_a_trainer_writes_to_its_folder_and_goes_on_there(tmp_path: Path) -> None:
    run = rl.RunFolder.new("ppo", tmp_path)
    plain, trainer = build("ppo"), build("ppo", run_folder=run)
    plain.run()
    trainer.run()
    assert digest(trainer) == digest(plain)
    files = ["best.safetensors", "checkpoints", "logs", "params.json"]
    assert sorted(path.name for path in run.path.iterdir()) == files
    assert [path.name for path in run.logs.iterdir()] == ["log.jsonl"]
    assert type(rl.load(run.best)) is rl.PPO
    again = build("ppo", max_epochs=4, run_folder=run)
    assert again.run().epoch == 4
    assert rl.open_run(run.path).rows("epoch")["epoch"].tolist() == [1, 2, 3, 4]


def test_what_a_user_gives_goes_before_the_folders(tmp_path: Path) -> None:
    run, logger = rl.RunFolder(tmp_path), rl.CSVLogger(tmp_path / "mine.csv")
    saved: list[Any] = []
    mine = {"logger": logger, "save_best_fn": saved.append, "checkpoint": rl.CheckpointParams(tmp_path / "mine")}
    trainer = build("ppo", run_folder=run, **mine)
    assert {name: getattr(trainer.params, name) for name in mine} == mine
    assert build("ppo", run_folder=run, test_collector=None).params.save_best_fn is None
    assert build("ppo").params.run_folder is None


def test_a_folder_changes_no_bit_and_costs_no_row(tmp_path: Path) -> None:
    plain, logged = build("sac"), build("sac", logger=rl.RunFolder.new("sac", tmp_path).logger())
    plain.run()
    logged.run()
    assert digest(plain) == digest(logged)
    logged.run()  # a second run, whose params lie beside the first one's
    assert sorted(path.name for path in (tmp_path / "sac").iterdir()) == ["logs", "params-2.json", "params.json"]
    assert sorted(path.name for path in (tmp_path / "sac" / "logs").iterdir()) == ["log-2.jsonl", "log.jsonl"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "/etc", -1, 0, None, True, ["a"], float("nan")])
def test_a_name_is_that_of_a_folder(name: Any, tmp_path: Path) -> None:
    with pytest.raises(ParamsError) as caught:
        rl.RunFolder.new(name, tmp_path)
    rule = "must be a name for a folder, without / and \\, of at most 240 bytes"
    assert str(caught.value) == f"RunFolder.new.name: {rule}; got {name!r} ({type(name).__name__})"
    assert list(tmp_path.iterdir()) == []


def test_names_of_experiments() -> None:
    name = rl.generate_exp_name("ppo", "ALE/Pong-v5", "lr 3e-4")
    assert re.fullmatch(r"ppo_ALE-Pong-v5_lr-3e-4_\d\d_\d\d_\d\d-\d\d_\d\d_\d\d_[0-9a-f]{8}", name)
    rl.seed(1)
    before = random.getstate()
    names = [rl.generate_exp_name("ppo") for _ in range(1000)]
    assert random.getstate() == before  # names take nothing from seeded generators
    assert len(set(names)) == 1000
    assert [each[:21] for each in names] == sorted(each[:21] for each in names)


@pytest.mark.parametrize(("name", "cls", "place"), [
    ("tensorboard", rl.TensorBoardLogger, "cartpole"), ("csv", rl.CSVLogger, "cartpole/log.csv"),
    ("jsonl", rl.JSONLinesLogger, "cartpole/log.jsonl"),
])  # fmt: skip
def test_a_name_and_a_folder_give_a_logger(name: Any, cls: type[Any], place: str, tmp_path: Path) -> None:
    logger = rl.get_logger(name, tmp_path / "cartpole", training_interval=7, strict=True)
    assert type(logger) is cls
    assert logger.path == tmp_path / place  # type: ignore[attr-defined]  # those of files have one
    logger.log("test", {"score": 1.0}, 5)
    assert (tmp_path / place).exists()
    assert [logger.is_due("training", step) for step in (1, 2)] == [True, True]
    logger.log("training", {}, 1)
    assert [logger.is_due("training", step) for step in (6, 7)] == [False, True]


def test_the_console_writes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logger = rl.get_logger("console", tmp_path / "cartpole", stream=sys.stderr)
    logger.log("test", {"score": 1.0}, 5)
    assert capsys.readouterr() == ("", "test      step 5: score 1\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "package"), [("wandb", "wandb"), ("mlflow", "mlflow")])
def test_a_service_keeps_its_files_in_the_folder(name: Any, package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    logger: Any = rl.get_logger(name, tmp_path / "cartpole", name="first")
    assert (type(logger).__name__.lower(), logger.name) == (f"{name}logger", "first")
    assert logger.folder == tmp_path / "cartpole"
    of_run: Any = rl.RunFolder.new("cartpole", tmp_path).logger(name).loggers[2]
    assert (of_run.name, of_run.folder) == ("cartpole", tmp_path / "cartpole" / "logs")
