"""The checkpoints of a run in their directory."""

from pathlib import Path

import torch

from rltrainer.checkpoint import CheckpointStore, read_checkpoint


def test_the_newest_is_found(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run", keep_last=3, keep_best=1)
    store.open()
    assert store.newest_intact() is None
    for step in (10, 9000):
        store.save({"a": {"w": torch.full((3,), float(step))}}, step, None)
    store.close()
    newest = store.newest_intact()
    assert newest == tmp_path / "run" / "checkpoint-000000009000"
    assert read_checkpoint(newest)["a"]["w"].tolist() == [9000.0] * 3
