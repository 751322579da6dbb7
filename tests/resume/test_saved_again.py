"""A run that saves again and again: from each of its checkpoints another one continues to the same end, bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from rltrainer.checkpoint import CheckpointStore
from rltrainer.checkpoint.store import live_state
from rltrainer.data import buffer_state
from rltrainer.state.codec import to_state
from rltrainer.trainers.run_checkpoints import _settings
from tests.resume.runs import RUNS, build, digest


def save(store: CheckpointStore, trainer: Any) -> None:
    """Save as a trainer does."""
    trainer.state.params = _settings(trainer.params, trainer.algorithm)
    parts = {"algorithm": trainer.algorithm, **trainer.params.parts()}
    states = {name: live_state(part) for name, part in parts.items()} | {"trainer": to_state(trainer.state)}
    store.save(states, trainer.state.training_step, None)


@pytest.mark.parametrize("name", RUNS)
def test_each_of_its_checkpoints_continues_to_the_same_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffer_state, "MIN_NBYTES", 100)
    store, whole = CheckpointStore(tmp_path, None, 0), build(name)
    store.open()
    object.__setattr__(whole.params, "save_checkpoint_fn", lambda *_: [save(store, whole), ""][1])
    whole.run()
    store.close()
    found = sorted(tmp_path.glob("checkpoint-*"))
    assert len(found) >= 5
    for path in found[:: max(len(found) // 4, 1)]:
        resumed = build(name)
        resumed.restore(path)
        resumed.run()
        assert digest(resumed) == digest(whole), path
