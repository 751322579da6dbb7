"""A disk that is full, a quota, a place that is read-only: an error with path and cause, and nothing is lost."""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError, ReplayBufferError
from tests.resume.runs import build

REFUSALS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO]


@pytest.fixture(scope="module")
def trainer() -> Any:
    trainer = build("dqn")
    trainer.execute_epoch()
    return trainer


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
@pytest.mark.parametrize("function", ["fsync", "replace", "open"])
def test_a_save_that_the_disk_refuses_is_loud_and_harmless(
    code: int, function: str, trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves: list[tuple[Any, type[Exception]]] = [
        (partial(trainer.save, overwrite=True), CheckpointError),
        (trainer.algorithm.save, CheckpointError),
        (trainer.buffer.save, ReplayBufferError),
    ]
    for i, (save, _) in enumerate(saves):
        save(tmp_path / str(i))
    before = contents(tmp_path)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("builtins.open" if function == "open" else f"os.{function}", fail)
    for i, (save, error) in enumerate(saves):
        with pytest.raises(error) as caught:
            save(tmp_path / str(i))
        assert str(caught.value).startswith(f"{tmp_path / str(i)}: could not be written (")
        assert os.strerror(code) in str(caught.value)
        assert str(caught.value).endswith("What was there before is unchanged.")
    monkeypatch.undo()
    assert contents(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"]
    trainer.execute_epoch()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_real_full_device(trainer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rltrainer.files.atomic_write.hidden_name", lambda path, suffix: Path("/dev/full"))
    monkeypatch.setattr("rltrainer.files.atomic_write.remove", lambda path: None)
    with pytest.raises(CheckpointError, match="best: could not be written .*No space left on device"):
        trainer.algorithm.save(tmp_path / "best")


@pytest.mark.parametrize("name", ["nowhere/file/x", "folder"])
def test_a_path_that_cannot_be_a_file(name: str, trainer: Any, tmp_path: Path) -> None:
    (tmp_path / "nowhere").mkdir()
    (tmp_path / "nowhere" / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=rf"{name}: could not be written \("):
        trainer.algorithm.save(tmp_path / name)
    with pytest.raises(ReplayBufferError, match=rf"{name}: could not be written \("):
        trainer.buffer.save(tmp_path / name)


def test_a_loaded_buffer_does_not_change_with_its_file(trainer: Any, tmp_path: Path) -> None:
    trainer.buffer.save(tmp_path / "b")
    loaded, again = rl.ReplayBuffer.load(tmp_path / "b"), rl.ReplayBuffer.load(tmp_path / "b")
    before = again.sample(50)
    os.truncate(tmp_path / "b", 0)
    assert torch.equal(loaded.sample(50).obs, before.obs)
