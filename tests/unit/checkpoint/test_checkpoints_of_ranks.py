"""Checkpoints that several ranks write: their files, what each reads back, and faults of one that all raise."""

import errno
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.checkpoint import CheckpointStore, read_checkpoint, verify, write_checkpoint
from rltrainer.checkpoint import folder as checkpoint_folder
from rltrainer.checkpoint import store as checkpoint_store
from rltrainer.checkpoint.folder import num_shards_of, read_logged, read_manifest
from rltrainer.checkpoint.store import newest_num_shards
from rltrainer.data import buffer_state
from rltrainer.errors import CheckpointError, RankLostError
from rltrainer.ranks.ranks import Ranks
from tests.contract.test_all_algorithms import assert_same_state, make
from tests.fakes import run_in_threads
from tests.unit.checkpoint.test_folder import edit_manifest
from tests.unit.checkpoint.test_store import Calls, Run, assert_clean, flip, names, opened, state
from tests.unit.data.reference import World, make_buffer
from tests.unit.data.test_replay_file import same

FIRST, SECOND, THIRD = (f"checkpoint-00000000000{number}" for number in (1, 2, 3))


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_state, "MIN_NBYTES", 100)
    monkeypatch.setattr(buffer_state, "MAX_NBYTES", 200)


class Shards:
    """A run of several ranks, each with a buffer and a number of its own."""

    def __init__(self, folder: Path, keep_last: int | None = None, num: int = 2) -> None:
        self.folder, self.keep_last, self.num = folder, keep_last, num
        self.runs = [Run(20) for _ in range(num)]
        for rank, run in enumerate(self.runs):
            run.world, run.number = World(rank, 2), 100 * rank
        self.stores: dict[int, CheckpointStore] = {}

    def on_ranks(self, act: Callable[[CheckpointStore, Run], Any]) -> list[Any]:
        """Return what each rank returns, or the text of its `CheckpointError`."""

        def attempt(ranks: Ranks) -> Any:
            if (rank := ranks.rank) not in self.stores:
                self.stores[rank] = CheckpointStore(self.folder, self.keep_last, 0, ranks)
            self.stores[rank]._ranks = ranks  # of this meeting
            try:
                return act(self.stores[rank], self.runs[rank])
            except CheckpointError as error:
                return str(error)

        return run_in_threads([attempt] * self.num)

    def open(self) -> list[Any]:
        return self.on_ranks(lambda store, _: store.open())

    def save(self, step: int) -> list[Any]:
        return self.on_ranks(lambda store, run: store.save(run.state(), step, None))

    def close(self) -> None:
        self.on_ranks(lambda store, _: store.close())

    def newest(self) -> list[Any]:
        return self.on_ranks(lambda store, _: store.newest_intact())

    def go_on(self, num_steps: int) -> None:
        for run in self.runs:
            run.go_on(num_steps)

    def check(self, path: Path) -> None:
        """Assert that a checkpoint holds all shards as they are."""
        for rank, run in enumerate(self.runs):
            states = read_checkpoint(path, mapped=("buffer",), shard=rank)
            assert states["b"] == {"number": run.number}
            assert states["a"]["w"].tolist() == [run.number] * 3
            loaded = make_buffer(20, 2)
            loaded.load_state_dict(states["buffer"])
            assert same(loaded, run.buffer, ignored="")


def saved(folder: Path, num_saves: int = 2, num: int = 2) -> Shards:
    """Return a run that is open, and has saved this often."""
    shards = Shards(folder, num=num)
    assert shards.open() == [None] * num
    for number in range(1, num_saves + 1):
        shards.go_on(Run.steps[number - 1])
        assert shards.save(number) == [None] * num
    return shards


def test_files_and_their_names(tmp_path: Path) -> None:
    shards = saved(tmp_path, 1, num=3)
    shards.close()
    assert names(tmp_path) == [FIRST, "lock", "rows"]
    parts = [f"{prefix}{part}.safetensors" for prefix in ("", "shard1_", "shard2_") for part in ("a", "b", "buffer")]
    assert names(tmp_path / FIRST) == sorted([*parts, "manifest.json"])
    manifest = read_manifest(tmp_path / FIRST)
    assert (manifest.num_shards, manifest.serial, manifest.step) == (3, 1, 1)
    assert list(manifest.rows) == ["buffer", "shard1_buffer", "shard2_buffer"]
    for part, files in manifest.rows.items():
        assert len(files) > 1
        assert all(name.startswith(f"{part}-0000000") for name in files)
    assert set(names(tmp_path / "rows")) == set(manifest.row_files)
    shards.check(tmp_path / FIRST)
    assert num_shards_of(tmp_path / FIRST) == newest_num_shards(tmp_path) == 3


def test_a_run_of_one_rank_writes_the_bytes_that_a_run_without_ranks_writes(tmp_path: Path) -> None:
    made = opened(tmp_path / "alone")
    made.save(state(1), 1, 2.5)
    made.close()
    text = (tmp_path / "alone" / FIRST / "manifest.json").read_text()
    assert list(json.loads(text)) == ["rltrainer", "version", "files", "rows", "serial", "step", "score", "checksum"]
    assert num_shards_of(tmp_path / "alone" / FIRST) == newest_num_shards(tmp_path / "alone") == 1

    def save(ranks: Ranks) -> None:
        store = CheckpointStore(tmp_path / "ranks", None, 0, ranks)
        store.open()
        store.save(state(1), 1, 2.5)
        store.close()

    run_in_threads([save])
    for name in names(tmp_path / "alone" / FIRST):
        assert (tmp_path / "alone" / FIRST / name).read_bytes() == (tmp_path / "ranks" / FIRST / name).read_bytes()


def test_a_long_run_of_saves_with_few_kept(tmp_path: Path) -> None:
    shards = Shards(tmp_path, keep_last=2)
    shards.open()
    for number, steps in enumerate(Run.steps, 1):
        shards.go_on(steps)
        assert shards.save(number) == [None, None]
        listed = [read_manifest(path).row_files for path in tmp_path.glob("checkpoint-*")]
        assert len(listed) == min(number, 2)
        assert set(names(tmp_path / "rows")) == {name for files in listed for name in files}
        newest = tmp_path / f"checkpoint-{number:012d}"
        assert shards.newest() == [newest, newest]
        shards.check(newest)
    shards.close()
    assert_clean(tmp_path)


def test_a_run_that_resumes_writes_no_rows_that_are_there(tmp_path: Path) -> None:
    shards = saved(tmp_path)
    shards.close()
    before = names(tmp_path / "rows")
    again = Shards(tmp_path)
    again.open()
    for rank, run in enumerate(again.runs):
        run.buffer.load_state_dict(read_logged(tmp_path / SECOND, mapped=("buffer",), shard=rank)["buffer"])
        run.number, run.world = shards.runs[rank].number, shards.runs[rank].world
    again.save(3)
    assert names(tmp_path / "rows") == before
    again.check(tmp_path / THIRD)
    again.go_on(7)
    again.save(4)
    again.close()
    again.check(tmp_path / "checkpoint-000000000004")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("file", ["rows", "part"])
def test_a_failed_write_of_one_rank_fails_on_all(
    rank: int, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = saved(tmp_path, 1)
    before = names(tmp_path / "rows")
    write_member = checkpoint_folder.write_member

    def fail(path: Path, packed: Any) -> Any:
        entry = write_member(path, packed)
        if path.name.startswith("shard1_") == (rank == 1) and (path.parent.name == "rows") == (file == "rows"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return entry

    cause = rf"rank {rank} of 2: OSError: [Errno 28] No space left on device"
    text = f"{tmp_path}: step 40 could not be saved ({cause}). The newest one is {tmp_path / FIRST}."
    for steps in Run.steps[1:4]:
        shards.go_on(steps)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_folder, "write_member", fail)
            patch.setattr(checkpoint_store, "write_member", fail)
            assert shards.save(40) == [text, text]
        assert names(tmp_path) == [FIRST, "lock", "rows"]
        assert names(tmp_path / "rows") == before
    assert shards.save(40) == [None, None]
    shards.check(tmp_path / "checkpoint-000000000040")
    shards.close()
    assert_clean(tmp_path)


def test_the_first_save_that_fails_has_none_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = saved(tmp_path, 0)
    shards.go_on(5)
    monkeypatch.setattr(checkpoint_store, "write_manifest", lambda *_, **__: 1 // 0)
    first, second = shards.save(1)
    cause = "rank 0 of 2: ZeroDivisionError: "
    assert first.startswith(f"{tmp_path}: step 1 could not be saved ({cause}")
    assert first.endswith("). There is none before it.")
    assert first == second
    shards.close()
    assert names(tmp_path) == ["lock", "rows"]
    assert names(tmp_path / "rows") == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_state_that_cannot_be_saved(rank: int, tmp_path: Path) -> None:
    shards = saved(tmp_path, 1)
    before = names(tmp_path / "rows")
    shards.go_on(3)
    shards.runs[rank].state = lambda: {"b": {"x": object()}}  # type: ignore[method-assign]
    first, second = shards.save(2)
    assert first == second
    assert first.startswith(f"rank {rank} of 2: TypeError: b.x: a state holds tensors and plain values; got ")
    shards.close()
    assert names(tmp_path) == [FIRST, "lock", "rows"]
    assert names(tmp_path / "rows") == before


class Killed(BaseException):
    """Ends a thread as a kill would."""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_ends_in_a_save_leaves_the_earlier_one(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 at the rename, when all is written; the other one while it writes."""
    shards = saved(tmp_path, 1)
    runs = [run.number for run in shards.runs]
    shards.go_on(3)
    write_member = checkpoint_folder.write_member

    def end(*args: Any) -> Any:
        raise Killed

    def end_at_last(path: Path, packed: Any) -> Any:
        return end() if path.name == "shard1_b.safetensors" else write_member(path, packed)

    with monkeypatch.context() as patch:
        if rank == 0:
            patch.setattr(os, "replace", end)
        else:
            patch.setattr(checkpoint_folder, "write_member", end_at_last)
        with pytest.raises(Killed):
            shards.save(2)
    assert newest_num_shards(tmp_path) == 2
    assert not (tmp_path / SECOND).exists()
    shards.close()
    again = Shards(tmp_path)
    assert again.newest() == [tmp_path / FIRST] * 2
    assert [read_checkpoint(tmp_path / FIRST, shard=r)["b"]["number"] for r in range(2)] == runs
    again.open()
    again.close()
    assert_clean(tmp_path)
    assert names(tmp_path) == [FIRST, "lock", "rows"]
    shards.open()
    assert shards.save(2) == [None, None]
    shards.close()
    shards.check(tmp_path / SECOND)


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


@pytest.mark.parametrize("num_left", range(5))
def test_a_rank_that_is_lost_at_any_point_of_a_save_is_no_failed_save(num_left: int, tmp_path: Path) -> None:
    ranks, run = Lost(0, 2), Run(20)
    made = CheckpointStore(tmp_path, 1, 0, ranks)
    made.open()
    for number in (1, 2):
        run.go_on(Run.steps[number])
        if number == 2:
            ranks.num_left = num_left
            with pytest.raises(RankLostError, match="rank 1 of 2 is gone"):
                made.save(run.state(), number, None)
        else:
            made.save(run.state(), number, None)
    made.close()
    is_named = num_left >= 3  # the next one is lost when the checkpoint has its name
    assert (tmp_path / SECOND).exists() == is_named
    assert names(tmp_path)[-2:] == ["lock", "rows"]
    assert opened(tmp_path).newest_intact() == tmp_path / (SECOND if is_named else FIRST)
    assert_clean(tmp_path)


def third_save(folder: Path) -> Shards:
    """Return a run of two ranks before its third save, which prunes the first."""
    shards = Shards(folder, keep_last=2)
    for steps in Run.steps[:3]:
        shards.go_on(steps)
    return shards


def number_in(path: Path) -> int:
    """Return which save a checkpoint is of; all shards are of the same."""
    found = [int(read_checkpoint(path, shard=rank)["b"]["number"]) for rank in range(2)]
    assert found[1] - found[0] == 100
    return found[0]


@pytest.mark.full
def test_whatever_the_system_refuses_at_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    saved(tmp_path / "two").close()
    num_failed = 0
    for at in range(1, 1000, 5):
        shutil.copytree(tmp_path / "two", folder := tmp_path / str(at))
        shards, calls = third_save(folder), Calls(at, fail)
        shards.open()
        with monkeypatch.context() as patch:
            calls.install(patch.setattr)
            first, second = shards.save(3)
        if calls.count < at:
            break
        assert first == second
        newest = shards.newest()
        if first is not None:
            num_failed += 1
            assert "rank " in first
            assert first.endswith(f"The newest one is {newest[0]}.")
        assert newest[0] == newest[1]
        assert first is not None or number_in(newest[0]) == 3
        assert shards.save(4) == [None, None]
        shards.check(folder / "checkpoint-000000000004")
        shards.open()
        shards.save(4)
        shards.close()
        assert_clean(folder)
        shutil.rmtree(folder)
    assert num_failed > 10


def die_at(folder: Path, at: int) -> None:
    """Save, and die at a call of the save."""
    buffer_state.MIN_NBYTES, buffer_state.MAX_NBYTES = 100, 200
    shards, calls = third_save(folder), Calls(at, lambda: os.kill(os.getpid(), 9))
    shards.open()
    os.fsync = lambda descriptor: None
    calls.install(setattr)
    shards.save(3)
    os._exit(0 if calls.count < at else 1)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_whenever_it_is_killed_the_newest_is_whole_and_leftovers_go(tmp_path: Path) -> None:
    saved(tmp_path / "two").close()
    context, found = multiprocessing.get_context("fork"), set()
    for at in range(1, 1000, 9):
        shutil.copytree(tmp_path / "two", folder := tmp_path / str(at))
        process = context.Process(target=die_at, args=(folder, at))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -9
        shards = Shards(folder)
        shards.open()
        newest = shards.newest()
        assert newest[0] == newest[1]
        found.add(number_in(newest[0]))
        shards.close()
        assert_clean(folder)
        shutil.rmtree(folder)
    assert found == {2, 3}


@pytest.mark.parametrize("member", ["shard1_b.safetensors", "rows", "missing shard1_b.safetensors", "missing rows"])
def test_a_damaged_file_of_one_shard_damages_the_checkpoint(member: str, tmp_path: Path) -> None:
    shards = saved(tmp_path)
    shards.close()
    older, newest = tmp_path / FIRST, tmp_path / SECOND
    damaged = newest / member.removeprefix("missing ")
    if "rows" in member:
        new = set(read_manifest(newest).row_files) - set(read_manifest(older).row_files)
        damaged = tmp_path / "rows" / min(name for name in new if name.startswith("shard1_"))
    damaged.unlink() if member.startswith("missing") else flip(damaged)
    with pytest.warns(RuntimeWarning, match=f"passed over: {damaged}") as caught:
        assert shards.newest() == [older, older]
    assert len(caught) == 1
    for shard in (0, 1):
        with pytest.raises(CheckpointError, match=str(damaged)):
            read_checkpoint(newest, shard=shard)
    assert not verify(newest).is_whole
    assert newest_num_shards(tmp_path) == 2  # its manifest can be read
    flip(older / "manifest.json")
    with pytest.warns(RuntimeWarning):
        first, second = shards.newest()
    assert first == second
    assert first.startswith(f"{tmp_path}: all 2 checkpoints are damaged; the newest: ")


def test_there_is_none(tmp_path: Path) -> None:
    assert Shards(tmp_path).newest() == [None, None]
    assert newest_num_shards(tmp_path) is None
    assert newest_num_shards(tmp_path / "nothing") is None
    with pytest.raises(CheckpointError, match="nothing: there is no such checkpoint"):
        num_shards_of(tmp_path / "nothing")
    (tmp_path / FIRST).mkdir()
    assert newest_num_shards(tmp_path) is None


def test_one_run_at_a_time_writes_there(tmp_path: Path) -> None:
    other, shards = opened(tmp_path), Shards(tmp_path)
    first, second = shards.open()
    assert first == second
    assert first.startswith(f"{tmp_path}: is written by process {os.getpid()} on ")
    first, second = shards.save(1)
    assert first == second == f"{tmp_path}: is not open for writing. Call open() first."
    other.close()
    assert shards.open() == shards.open() == [None, None]
    with pytest.raises(CheckpointError, match="is written by process"):
        other.open()
    shards.stores[0]._lock.path.unlink()
    other.open()
    first, second = shards.save(1)
    assert first == second
    assert first.startswith(f"{tmp_path}: step 1 could not be saved ({tmp_path}: is written by process {os.getpid()}")
    other.close()
    shards.close()


def write(path: Path, number: int, overwrite: bool = True) -> list[Any]:
    """Let two ranks write a checkpoint that stands alone; return the text of each one's error, or None."""

    def attempt(ranks: Ranks) -> str | None:
        try:
            write_checkpoint(path, state(number + 100 * ranks.rank), overwrite, ranks)
        except CheckpointError as error:
            return str(error)
        return None

    return run_in_threads([attempt] * 2)


def test_one_that_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "c"
    assert write(path, 1, overwrite=False) == [None, None]
    assert names(path) == ["a.safetensors", "b.safetensors", "manifest.json", "shard1_a.safetensors",
                           "shard1_b.safetensors"]  # fmt: skip
    assert number_in(path) == 1
    text = f"{path}: exists, and is not replaced. Save to another path, or with overwrite=True."
    assert write(path, 2, overwrite=False) == [text, text]
    assert write(path, 2) == [None, None]
    assert number_in(path) == 2
    write_member = checkpoint_folder.write_member

    def fail(file: Path, packed: Any) -> Any:
        if file.name == "shard1_b.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_member(file, packed)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder, "write_member", fail)
        first, second = write(path, 3)
    assert first == second
    assert first.startswith(f"rank 1 of 2: CheckpointError: {path}: could not be written ([Errno 28] No space left")
    assert names(path.parent) == ["c"]
    assert number_in(path) == 2
    write_checkpoint(path, state(7), overwrite=True)  # by one rank, which takes away the files of both
    assert num_shards_of(path) == 1
    assert read_checkpoint(path)["b"] == {"number": 7}


def test_an_interrupt_of_one_rank_leaves_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write_member = tmp_path / "c", checkpoint_folder.write_member
    write(path, 1)

    def interrupt(file: Path, packed: Any) -> Any:
        if file.name == "shard1_b.safetensors":
            raise Killed
        return write_member(file, packed)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder, "write_member", interrupt)
        with pytest.raises(Killed):
            write(path, 2)
    assert number_in(path) == 1
    write(path, 3)
    assert number_in(path) == 3
    assert names(tmp_path) == ["c"]


def test_a_shard_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "c", 1)
    hint = r"Pass RuntimeParams\(parallel=ParallelParams\(num_shards=2\)\)\."
    for read in (read_checkpoint, read_logged):
        with pytest.raises(CheckpointError, match=rf"c: was saved by a run of 2 shards, and has no shard 2\. {hint}"):
            read(tmp_path / "c", shard=2)


@pytest.mark.parametrize("num_shards", [0, -1, "2", None, True, 2.0, 2**70])
def test_a_manifest_whose_number_of_shards_is_none(num_shards: Any, tmp_path: Path) -> None:
    write(tmp_path / "c", 1)
    edit_manifest(tmp_path / "c", num_shards=num_shards)
    with pytest.raises(CheckpointError, match=r"manifest.json: damaged"):
        num_shards_of(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"manifest.json: damaged"):
        read_checkpoint(tmp_path / "c")


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
