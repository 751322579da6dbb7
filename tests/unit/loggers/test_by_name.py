"""Loggers by name: each is made, an unknown name or option is told with what is meant."""

import sys
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ArgumentError, ParamsError


@pytest.mark.parametrize(
    ("name", "cls", "place"),
    [
        ("tensorboard", rl.TensorBoardLogger, "cartpole"),
        ("csv", rl.CSVLogger, "cartpole/log.csv"),
        ("jsonl", rl.JSONLinesLogger, "cartpole/log.jsonl"),
    ],
)
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


def test_a_name_that_is_none_of_them() -> None:
    names = "('tensorboard', 'csv', 'jsonl', 'console', 'wandb', 'mlflow')"
    with pytest.raises(ParamsError) as caught:
        rl.get_logger("tensorbord")  # type: ignore[arg-type]
    text = f"get_logger.name: must be one of {names}; got 'tensorbord' (str). Did you mean 'tensorboard'?"
    assert str(caught.value) == text
    for value in (-1, 0, float("inf"), "", None, True, ["csv"]):
        with pytest.raises(ParamsError) as caught:
            rl.get_logger(value)  # type: ignore[arg-type]
        assert str(caught.value) == f"get_logger.name: must be one of {names}; got {value!r} ({type(value).__name__})"


def test_an_option_that_it_does_not_have() -> None:
    with pytest.raises(ArgumentError) as caught:
        rl.get_logger("csv", trainning_interval=3)
    assert str(caught.value) == "get_logger: unknown option 'trainning_interval'. Did you mean 'training_interval'?"
    with pytest.raises(ArgumentError, match=r"^get_logger: unknown option 'project'\."):
        rl.get_logger("csv", project="control")
    with pytest.raises(ParamsError, match=r"^get_logger.folder: must be a path; got 3 \(int\)"):
        rl.get_logger("csv", 3)  # type: ignore[arg-type]
