"""Checkpoints that several ranks write: a rank that is lost in a save, one that stands alone, readers."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.checkpoint import CheckpointStore, read_checkpoint, verify, write_checkpoint
from rltrainer.checkpoint import folder as checkpoint_folder
from rltrainer.errors import CheckpointError, RankLostError
from rltrainer.ranks.ranks import Ranks
from tests.contract.test_all_algorithms import assert_same_state, make
from tests.fakes import run_in_threads
from tests.unit.checkpoint.test_folder import names, number_in, state
from tests.unit.checkpoint.test_store import (
    FIRST,
    SECOND,
    Run,
    assert_clean,
    newest_in,
    num_shards_of,
    opened,
    saved,
)  # fmt: skip


def test_a_checkpoint_of_one_rank_says_nothing_of_ranks(tmp_path: Path) -> None:
    saved(tmp_path, 1, 1).close()
    text = (tmp_path / FIRST / "manifest.json").read_text()
    assert list(json.loads(text)) == ["rltrainer", "version", "files", "rows", "serial", "step", "score", "checksum"]
    assert num_shards_of(tmp_path, tmp_path / FIRST) == num_shards_of(tmp_path) == 1


class Lost(Ranks):
    """The first of two ranks, which answers alike until it is lost."""

    num_left = 100

    def _gather(self, x: Any, is_equal: bool) -> list[Any]:
        raise NotImplementedError

    def from_all(self, value: Any) -> list[Any]:
        self.num_left -= 1
        if self.num_left < 0:
            raise RankLostError("rank 1 of 2 is gone")
        return [value] * 2


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("num_left", range(5))
def test_a_rank_that_is_lost_at_any_point_of_a_save_is_no_failed_save(num_left: int, tmp_path: Path) -> None:
    ranks, run = Lost(0, 2), Run(20)
    made = CheckpointStore(tmp_path, 1, 0, ranks)
    made.open()
    run.go_on(3)
    made.save(run.state(), 1, None)
    run.go_on(1)
    ranks.num_left = num_left
    with pytest.raises(RankLostError, match="rank 1 of 2 is gone"):
        made.save(run.state(), 2, None)
    made.close()
    is_named = num_left >= 3  # the next one is lost when the checkpoint has its name
    assert (tmp_path / SECOND).exists() == is_named
    assert names(tmp_path)[-2:] == ["lock", "rows"]
    assert newest_in(opened(tmp_path)) == tmp_path / (SECOND if is_named else FIRST)
    assert_clean(tmp_path)


def test_there_is_none(tmp_path: Path) -> None:
    assert num_shards_of(tmp_path) is None
    assert num_shards_of(tmp_path / "nothing") is None
    with pytest.raises(CheckpointError, match="nothing: there is no such checkpoint"):
        num_shards_of(tmp_path, tmp_path / "nothing")
    (tmp_path / FIRST).mkdir()
    assert num_shards_of(tmp_path) is None


def write(path: Path, number: int, overwrite: bool = True) -> str | None:
    """Let two ranks write a checkpoint that stands alone; return the text of their error, or None."""

    def attempt(ranks: Ranks) -> str | None:
        try:
            write_checkpoint(path, state(number + 100 * ranks.rank), overwrite, ranks)
        except CheckpointError as error:
            return str(error)
        return None

    first, second = run_in_threads([attempt] * 2)
    assert first == second
    return first


def assert_holds(path: Path, number: int) -> None:
    assert [number_in(path, rank) for rank in range(2)] == [number, number + 100]


def test_one_that_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "c"
    assert write(path, 1, overwrite=False) is None
    assert names(path) == ["a.safetensors", "b.safetensors", "manifest.json", "shard1_a.safetensors",
                           "shard1_b.safetensors"]  # fmt: skip
    assert_holds(path, 1)
    text = f"{path}: exists, and is not replaced. Save to another path, or with overwrite=True."
    assert write(path, 2, overwrite=False) == text
    assert write(path, 2) is None
    assert_holds(path, 2)
    write_member = checkpoint_folder.write_member

    def fail(path: Path, packed: Any) -> Any:
        if path.name == "shard1_b.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_member(path, packed)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder, "write_member", fail)
        text = f"rank 1 of 2: CheckpointError: {path}: could not be written ([Errno 28] No space left"
        assert str(write(path, 3)).startswith(text)
    assert names(path.parent) == ["c"]
    assert_holds(path, 2)
    hint = r"Pass RuntimeParams\(parallel=ParallelParams\(num_shards=2\)\)\."
    with pytest.raises(CheckpointError, match=rf"c: was saved by a run of 2 shards, and has no shard 2\. {hint}"):
        read_checkpoint(path, shard=2)
    write_checkpoint(path, state(7), overwrite=True)  # by one rank, which takes away the files of both
    assert num_shards_of(tmp_path, path) == 1
    assert number_in(path) == 7


def test_readers_of_one_checkpoint_take_the_first_shard(tmp_path: Path) -> None:
    """The report, `rl.load` and `open_run`."""
    made = make("dqn")
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)

    def save(ranks: Ranks) -> None:
        store = CheckpointStore(run / "checkpoints", None, 0, ranks)
        store.open()
        algorithm = made.state_dict() if ranks.rank == 0 else {"x": 1}
        parts = {"algorithm": algorithm, "trainer": {"stop_reason": f"hook {ranks.rank}"}}
        store.save(parts, 1, None)
        store.close()

    run_in_threads([save] * 2)
    path = run / "checkpoints" / FIRST
    lines = str(verify(path)).splitlines()
    assert lines[:2] == [f"{path}: whole", "  format 3, shards 2, step 1"]
    parts = [line.partition(":")[0] for line in lines[2:] if not line.startswith("    ")]
    assert parts == ["  algorithm", "  trainer"]
    assert "shard1" not in str(verify(path))
    assert_same_state(rl.load(path), made)
    opened_run = rl.open_run(run)
    assert opened_run.newest_checkpoint == path
    assert opened_run.stop_reason == "hook 0"
