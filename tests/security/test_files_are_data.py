"""Loading runs nothing from a file: a pickle that would, is an error and unread (promise 10)."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError, ReplayBufferError
from tests.resume.runs import build


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("save", [lambda value, path: path.write_bytes(pickle.dumps(value)), torch.save])
def test_a_pickle_is_refused_unread(save: Any, tmp_path: Path) -> None:
    canary, file = tmp_path / "canary", tmp_path / "file.safetensors"
    save(Canary(canary), file)
    with pytest.raises(ReplayBufferError, match="file.safetensors"):
        rl.ReplayBuffer.load(file)
    with pytest.raises(CheckpointError, match="file.safetensors"):
        build("ppo").algorithm.load(file)
    assert not canary.exists()


@pytest.mark.parametrize("member", ["manifest.json", "algorithm.safetensors", "trainer.safetensors"])
def test_a_pickle_in_a_checkpoint_is_refused_unread(member: str, tmp_path: Path) -> None:
    trainer = build("ppo")
    trainer.save(tmp_path / "checkpoint")
    canary = tmp_path / "canary"
    (tmp_path / "checkpoint" / member).write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(CheckpointError, match=member.replace(".", r"\.")):
        trainer.restore(tmp_path / "checkpoint")
    assert not canary.exists()
