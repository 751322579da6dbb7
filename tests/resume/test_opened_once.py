"""A whole resume, up to its first save, reads each manifest once and hashes each file once."""

from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import rltrainer as rl
from rltrainer.checkpoint import folder
from rltrainer.data import buffer_state
from tests.resume.runs import build


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("damaged", [None, "manifest.json", "trainer.safetensors", "rows", "path"])
def test_each_file_of_a_checkpoint_is_read_once(
    num_shards: int, damaged: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(num_shards: int | None, max_epochs: int, resume: str | Path = "auto") -> Any:
        checkpoint = rl.CheckpointParams(tmp_path, resume=resume)
        runtime = rl.RuntimeParams(parallel=rl.ParallelParams(num_shards=num_shards))
        trainer = build("dqn", max_epochs, num_envs=4, checkpoint=checkpoint, runtime=runtime)
        trainer.run()
        return trainer

    monkeypatch.setattr(buffer_state, "MIN_NBYTES", 100)
    trained(num_shards, 2)
    older, newest = sorted(tmp_path.glob("checkpoint-*"))
    resumed, resume = newest, "auto"
    row_files = folder.read_manifest(newest).row_files.keys() - folder.read_manifest(older).row_files.keys()
    match damaged:
        case None:
            pass
        case "path":
            resume = str(newest)
        case _:
            resumed, file = older, newest / damaged if damaged != "rows" else tmp_path / "rows" / max(row_files)
            file.write_bytes(file.read_bytes()[:-1] + b"?")

    opened, open_member = Counter[Path](), folder._open_member

    def noted(file: Path) -> BinaryIO:
        opened[file] += 1
        return open_member(file)

    monkeypatch.setattr(folder, "_open_member", noted)
    if resumed == older:
        with pytest.warns(RuntimeWarning, match="passed over"):
            trainer = trained(None, 3, resume)
    else:
        trainer = trained(None, 3, resume)
    assert trainer.epoch == 3
    assert trainer.ranks.world == num_shards
    manifest = folder.read_manifest(resumed)
    rows = {tmp_path / "rows" / name for name in manifest.row_files}
    assert len(rows) >= num_shards
    opened[resumed / "manifest.json"] -= 1  # of this test
    expected = {resumed / name for name in manifest.files} | rows | {each / "manifest.json" for each in (older, newest)}
    assert expected <= opened.keys()
    assert set(opened.values()) == {1}, opened
