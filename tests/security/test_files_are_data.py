"""Loading runs nothing from a file (promise 10): canaries, as pickles and as texts, in every file and member."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.checkpoint import read_checkpoint, write_checkpoint
from rltrainer.errors import CheckpointError, RLTrainerError
from rltrainer.loggers.log_state import LoggedEpoch
from rltrainer.state.state_file import read_state, write_state
from tests.resume.runs import build
from tests.security.loaders import READERS

MEMBERS = [
    "manifest.json", "algorithm.safetensors", "buffer.safetensors", "logger.safetensors", "test_collector.safetensors",
    "trainer.safetensors", "training_collector.safetensors",
]  # fmt: skip


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


ALL_READERS: list[Callable[[Path], object]] = [
    *READERS,
    lambda path: rl.PPOParams.from_json(path.read_bytes()),  # type: ignore[arg-type]  # bytes will do
    lambda path: rl.JSONLinesLogger(path).read_progress(),
    LoggedEpoch.read,
]


@pytest.mark.parametrize("save", [lambda value, path: path.write_bytes(pickle.dumps(value)), torch.save])
def test_a_pickle_is_refused_unread(save: Any, tmp_path: Path) -> None:
    canary, file = tmp_path / "canary", tmp_path / "file.safetensors"
    save(Canary(canary), file)
    for read in ALL_READERS:
        with pytest.raises(RLTrainerError):
            read(file)
    assert not canary.exists()
    pickle.loads(pickle.dumps(Canary(canary)))
    assert canary.exists()  # so it sings


def saved(path: Path) -> Any:
    """Save a run with every kind of member, in the middle of an epoch, and return its trainer."""
    trainer = build("dqn_prioritized", logger=rl.JSONLinesLogger(path.parent / "log.jsonl"))
    trainer.reset()
    trainer.execute_epoch()
    trainer.save(path)
    return trainer


def test_a_pickle_in_a_checkpoint_is_refused_unread(tmp_path: Path) -> None:
    trainer = saved(tmp_path / "checkpoint")
    canary = tmp_path / "canary"
    assert sorted(file.name for file in (tmp_path / "checkpoint").iterdir()) == sorted(MEMBERS)
    for member in MEMBERS:
        data = (tmp_path / "checkpoint" / member).read_bytes()
        (tmp_path / "checkpoint" / member).write_bytes(pickle.dumps(Canary(canary)))
        with pytest.raises(CheckpointError, match=member.replace(".", r"\.")):
            trainer.restore(tmp_path / "checkpoint")
        (tmp_path / "checkpoint" / member).write_bytes(data)
    trainer.restore(tmp_path / "checkpoint")
    assert not canary.exists()


def with_texts(value: Any, text: str) -> Any:
    """Return a state in which every text and number is this text, and every tensor the bytes of a pickle."""
    if isinstance(value, dict):
        return {key: with_texts(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [with_texts(item, text) for item in value]
    return text


@pytest.mark.parametrize("kind", ["expression", "name", "pickle"])
def test_texts_that_would_run_are_texts(kind: str, tmp_path: Path) -> None:
    """In the place of each text of a state in turn, and of all values at once."""
    canary = tmp_path / "canary"
    texts = {
        "expression": f"__import__('pathlib').Path({str(canary)!r}).touch()",
        "name": "tests.security.test_files_are_data.Canary",
        "pickle": pickle.dumps(Canary(canary), protocol=0).decode(),
    }
    trainer = saved(tmp_path / "checkpoint")
    states = read_checkpoint(tmp_path / "checkpoint")
    for part, state in states.items():
        for key in state:
            changed = state | {key: with_texts(state[key], texts[kind])}
            write_checkpoint(tmp_path / "wrong", states | {part: changed}, overwrite=True)
            if (part, key) in HARMLESS:
                trainer.restore(tmp_path / "wrong")
                continue
            with pytest.raises(CheckpointError, match="wrong"):
                trainer.restore(tmp_path / "wrong")
    for name, save, load in (
        ("algorithm", trainer.algorithm.save, rl.load),
        ("policy", trainer.algorithm.policy.save, rl.load_policy),
        ("replay_buffer", trainer.buffer.save, rl.PrioritizedReplayBuffer.load),
    ):
        save(tmp_path / "file")
        state = read_state(tmp_path / "file", name, CheckpointError)
        for key in state.keys() - {"extra"}:  # which is empty
            write_state(tmp_path / "file", name, state | {key: with_texts(state[key], texts[kind])})
            with pytest.raises(RLTrainerError, match="file"):
                load(tmp_path / "file")
    assert not canary.exists()


HARMLESS = {
    ("algorithm", "construction"),  # what only `rl.load` looks at
    ("buffer", "extra"),  # is empty
    ("training_collector", "older"),  # weights that only a run with `overlap` has
    ("test_collector", "older"),
    ("trainer", "stop_reason"),  # is shown
    ("trainer", "stop_request"),
    ("logger", "logger"),  # another class of logger's state continues the intervals only
    ("logger", "log"),  # no name of this log
    ("logger", "loggers"),  # is empty
}
"""Keys of states whose value may be any text."""
