"""The checkpoints of a run of one rank or several: what is written of which moment, what stays, faults, kills."""

import builtins
import errno
import multiprocessing
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrainer.checkpoint import CheckpointParams, CheckpointStore, read_checkpoint, store, write_checkpoint
from rltrainer.checkpoint import folder as checkpoint_folder
from rltrainer.checkpoint.folder import KnownFiles, open_checkpoint, read_manifest
from rltrainer.checkpoint.store import live_state, num_shards_to_resume
from rltrainer.data import buffer_state
from rltrainer.errors import CheckpointError
from rltrainer.ranks.ranks import ALONE, Ranks
from tests.fakes import run_in_threads
from tests.unit.checkpoint.test_folder import interrupted_at, names, number_in, state
from tests.unit.data.reference import World, add_step, make_buffer
from tests.unit.data.test_replay_file import same

FIRST, SECOND = "checkpoint-000000000001", "checkpoint-000000000002"
each_number_of_ranks = pytest.mark.parametrize("num", [1, 2])
each_rank = pytest.mark.parametrize(("num", "rank"), [(1, 0), (2, 0), (2, 1)])


def opened(directory: Path, keep_last: int | None = None, keep_best: int | None = 0) -> CheckpointStore:
    made = CheckpointStore(directory, keep_last, keep_best)
    made.open()
    return made


def newest_in(store: CheckpointStore) -> Path | None:
    found = store.open_newest()
    return None if found is None else found.path


def num_shards_of(folder: Path, resume: str | Path = "auto") -> int | None:
    return num_shards_to_resume(CheckpointParams(folder, resume=resume), KnownFiles())


class Run:
    """A buffer that fills, and a number: those of a rank."""

    steps = (70, 3, 1, 40, 5, 80, 2, 9)

    def __init__(self, capacity: int = 60, rank: int = 0) -> None:
        self.buffer, self.world, self.rank = make_buffer(capacity, 2), World(rank, 2), rank
        self.number = self.first = 100 * rank

    def go_on(self, num_steps: int) -> None:
        for _ in range(num_steps):
            add_step(self.buffer, None, self.world.step()[0])
        self.number += 1

    def go_on_to(self, number: int) -> None:
        while self.number < number:
            self.go_on(self.steps[self.number - self.first])

    def state(self) -> dict[str, Any]:
        return {"buffer": live_state(self.buffer), **state(self.number)}

    def resume(self, path: Path) -> None:
        self.go_on_to(number_in(path, self.rank))
        checkpoint = open_checkpoint(path)
        states = checkpoint.states(self.rank, ("buffer",), checkpoint.manifest.num_shards)
        self.buffer.load_state_dict(states["buffer"])

    def check(self, path: Path | None) -> int:
        """Assert that a checkpoint holds a buffer as it was at some save, and return which."""
        assert path is not None
        loaded, again = make_buffer(self.buffer.capacity, 2), Run(self.buffer.capacity, self.rank)
        loaded.load_state_dict(read_checkpoint(path, ("buffer",), self.rank)["buffer"])
        again.go_on_to(number_in(path, self.rank))
        assert same(loaded, again.buffer, ignored="")
        return again.number - self.first


class Shards:
    """The ranks of a run, each with a buffer and a number of its own, and the store that they save to.

    Methods return what every rank returns, or the text of the error that every rank raises.
    """

    def __init__(self, folder: Path, num: int = 1, keep_last: int | None = None, capacity: int = 60) -> None:
        self.folder, self.num, self.keep_last = folder, num, keep_last
        self.runs = [Run(capacity, rank) for rank in range(num)]
        self.stores: dict[int, CheckpointStore] = {}
        self.error: Exception | None = None

    def on_ranks(self, act: Callable[[CheckpointStore, Run], Any]) -> Any:
        def attempt(ranks: Ranks) -> Any:
            if (rank := ranks.rank) not in self.stores:
                self.stores[rank] = CheckpointStore(self.folder, self.keep_last, 0, ranks)
            self.stores[rank]._ranks = ranks  # of this meeting
            try:
                return act(self.stores[rank], self.runs[rank])
            except (CheckpointError, TypeError) as error:
                self.error = error
                return str(error)

        first, *others = run_in_threads([attempt] * self.num) if self.num > 1 else [attempt(ALONE)]
        assert others == [first] * len(others)
        return first

    def open(self) -> Any:
        return self.on_ranks(lambda store, _: store.open())

    def close(self) -> None:
        self.on_ranks(lambda store, _: store.close())

    def newest(self) -> Any:
        return self.on_ranks(lambda store, _: newest_in(store))

    def save(self, step: int) -> Any:
        return self.on_ranks(lambda store, run: store.save(run.state(), step, None))

    def go_on(self, num_steps: int) -> None:
        for run in self.runs:
            run.go_on(num_steps)

    def check(self, path: Path) -> int:
        """Assert that a checkpoint holds all shards as they were at some save, and return which."""
        (number,) = {run.check(path) for run in self.runs}
        return number


def saved(folder: Path, num: int, num_saves: int, **options: Any) -> Shards:
    """Return a run that is open, and has saved this often: at the steps 1, 2, and so on."""
    shards = Shards(folder, num, **options)
    assert shards.open() is None
    for number in range(1, num_saves + 1):
        shards.go_on(Run.steps[number - 1])
        assert shards.save(number) is None
    return shards


@pytest.mark.usefixtures("small_files")
def test_files_and_their_names(tmp_path: Path) -> None:
    shards = saved(tmp_path, 3, 1)
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
    assert shards.check(tmp_path / FIRST) == 1
    assert num_shards_of(tmp_path, tmp_path / FIRST) == num_shards_of(tmp_path) == 3


@pytest.mark.usefixtures("small_files")
def test_only_new_rows_are_written_and_checkpoints_share_the_others(tmp_path: Path) -> None:
    run, made = Run(400), opened(tmp_path)
    run.go_on(500)
    made.save(run.state(), 1, None)
    first = set(names(tmp_path / "rows"))
    run.go_on(3)
    made.save(run.state(), 2, None)
    made.close()
    manifests = [read_manifest(tmp_path / name) for name in (FIRST, SECOND)]
    assert [manifest.serial for manifest in manifests] == [1, 2]
    added = set(names(tmp_path / "rows")) - first
    assert len(first) > 50
    assert added == {"buffer-000000000998-000000001004.safetensors"}
    assert first & set(manifests[1].row_files) >= first - {min(first)}  # the oldest file is older than the ring
    assert set(manifests[1].row_files) - first == added


@each_number_of_ranks
@pytest.mark.usefixtures("small_files")
def test_a_process_that_goes_on_does_not_write_what_is_there(num: int, tmp_path: Path) -> None:
    shards, again = saved(tmp_path, num, 1), Shards(tmp_path, num)
    shards.close()
    before = names(tmp_path / "rows")
    again.open()
    for run in again.runs:
        run.resume(tmp_path / FIRST)
    assert again.save(1) is None
    assert names(tmp_path / "rows") == before
    again.go_on(Run.steps[1])
    assert again.save(2) is None
    assert again.check(tmp_path / SECOND) == 2
    again.close()
    damaged, all_before = tmp_path / "rows" / before[5], names(tmp_path / "rows")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    shards.stores.clear()  # a store trusts the files that it wrote itself
    shards.open()
    shards.save(1)  # a file of the first rank is no longer whole: it writes all its rows anew
    shards.close()
    assert len(names(tmp_path / "rows")) - len(all_before) == sum(name.startswith("buffer") for name in before)
    assert shards.newest() == tmp_path / f"{FIRST}-3"
    assert shards.check(shards.newest()) == 1


def test_a_branch_does_not_take_the_rows_of_another(tmp_path: Path) -> None:
    """Their numbers are the same, and what they hold is not."""
    made, one, other = opened(tmp_path), Run(), Run()
    one.go_on(70)
    made.save(one.state(), 1, None)
    other.world = World(9, 2)
    other.go_on(70)
    made.save(other.state(), 2, None)
    made.close()
    assert names(tmp_path / "rows") == [
        "buffer-000000000080-000000000138-2.safetensors", "buffer-000000000080-000000000138.safetensors"
    ]  # fmt: skip
    assert one.check(tmp_path / FIRST) == 1
    loaded = make_buffer(60, 2)
    loaded.load_state_dict(read_checkpoint(tmp_path / SECOND)["buffer"])
    assert same(loaded, other.buffer, ignored="")


@pytest.mark.usefixtures("small_files")
def test_rows_that_were_removed_are_written_again_and_a_checkpoint_can_stand_alone(tmp_path: Path) -> None:
    run, made = Run(), opened(tmp_path / "run")
    run.go_on(70)
    made.save(run.state(), 1, None)
    for path in (tmp_path / "run" / "rows").iterdir():
        path.unlink()
    made.save(run.state(), 2, None)
    made.close()
    for name in (FIRST, SECOND):
        assert run.check(tmp_path / "run" / name) == 1
    write_checkpoint(tmp_path / "alone", read_checkpoint(tmp_path / "run" / FIRST))
    shutil.rmtree(tmp_path / "run")
    assert run.check(tmp_path / "alone") == 1


@each_number_of_ranks
@pytest.mark.usefixtures("small_files")
def test_a_long_run_of_saves_with_few_kept(num: int, tmp_path: Path) -> None:
    shards = saved(tmp_path, num, 0, keep_last=2)
    for number, steps in enumerate(Run.steps, 1):
        shards.go_on(steps)
        assert shards.save(10 * number) is None
        kept = [f"checkpoint-{10 * n:012d}" for n in (number - 1, number) if n]
        assert names(tmp_path) == [*kept, "lock", "rows"]
        listed = [read_manifest(tmp_path / name).row_files for name in kept]
        assert set(names(tmp_path / "rows")) == {name for entries in listed for name in entries}
        assert shards.newest() == tmp_path / kept[-1]
        assert shards.check(shards.newest()) == number
    shards.close()


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_done_between_two_saves_the_newest_holds_the_buffer_as_it_is(seed: int, tmp_path: Path) -> None:
    """Adds, clears, ends trajectories, goes back to older checkpoints, and saves to two folders in turn."""
    rng = np.random.default_rng(seed)
    num_envs = int(rng.choice([1, 2, 3]))
    capacity = num_envs * int(rng.choice([1, 2, 3, 8, 40]))
    buffer, world, number = make_buffer(capacity, num_envs), World(seed, num_envs), 0
    stores = [opened(tmp_path / name, 3, None) for name in "ab"]
    for action in rng.choice(["add", "clear", "end", "go back", "save"], 30, p=[0.45, 0.05, 0.1, 0.1, 0.3]):
        made = stores[int(rng.integers(2))]
        saved = sorted(made.folder.glob("checkpoint-*"))
        if action == "add":
            for _ in range(int(rng.integers(1, 7))):
                add_step(buffer, None, world.step()[0])
        elif action == "clear":
            buffer.clear()
        elif action == "end":
            buffer.end_trajectory()
        elif action == "go back" and saved:
            buffer.load_state_dict(read_checkpoint(saved[int(rng.integers(len(saved)))])["buffer"])
        elif action == "save":
            number += 1
            made.save({"buffer": live_state(buffer)}, number, None)
            again, newest = make_buffer(capacity, num_envs), newest_in(made)
            assert newest is not None
            again.load_state_dict(read_checkpoint(newest)["buffer"])
            assert same(again, buffer, ignored="")
    assert number > 2
    for made in stores:
        made.close()


SCORES: list[Any] = [
    # scores in the order of saves, keep_last, keep_best, the steps that stay
    ([1.0, 3.0, 2.0, 0.0, 0.0], 1, 1, [2, 5]),
    ([1.0, 3.0, 3.0, 0.0, 0.0], 1, 1, [2, 5]),  # the older of two
    ([float("nan"), 3.0, None, -1.0, float("nan")], 2, 2, [2, 4, 5]),
    ([float("nan"), None, None, float("nan"), None], 1, 3, [5]),
    ([float("inf"), 3.0, float("-inf"), 1.0, 2.0], 1, 2, [1, 2, 5]),
    ([5, 3, 4, 1, 2], 2, 0, [4, 5]),
    ([5, 3, 4, 1, 2], None, 0, [1, 2, 3, 4, 5]),
    ([5.0, 3.0, None, 1.0, None], 1, None, [1, 2, 4, 5]),
    ([1.0, 2.0, 3.0, 4.0, 5.0], 1, 2, [4, 5]),
]


@pytest.mark.parametrize(("scores", "keep_last", "keep_best", "stay"), SCORES)
@pytest.mark.parametrize("reopens", [False, True])
def test_which_stay(
    scores: list[Any], keep_last: int | None, keep_best: int | None, stay: list[int], reopens: bool, tmp_path: Path
) -> None:
    made = opened(tmp_path, keep_last, keep_best)
    for step, score in enumerate(scores, 1):
        if reopens:
            made.close()
            made = opened(tmp_path, keep_last, keep_best)
        made.save(state(step), step, score)
    made.close()
    assert [int(path.name[-12:]) for path in sorted(tmp_path.glob("checkpoint-*"))] == stay


def test_the_newest_is_the_one_that_was_saved_last_whatever_its_step(tmp_path: Path) -> None:
    made = opened(tmp_path, keep_last=2)
    for step in (500, 20, 10):  # a run that went on from an older one
        made.save(state(step), step, None)
    made.close()
    assert names(tmp_path) == ["checkpoint-000000000010", "checkpoint-000000000020", "lock", "rows"]
    assert number_in(newest_in(made)) == 10


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGED = ["a.safetensors", "manifest.json", "rows", "missing manifest.json", "missing rows"]
DAMAGED_OF_RANKS = ["shard1_b.safetensors", "rows", "missing shard1_b.safetensors", "missing rows"]


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize(
    ("num", "member"), [*((1, name) for name in DAMAGED), *((2, name) for name in DAMAGED_OF_RANKS)]
)
def test_a_damaged_one_is_passed_over_with_a_warning(num: int, member: str, tmp_path: Path) -> None:
    shards = saved(tmp_path, num, 2)
    shards.close()
    newest, older = tmp_path / SECOND, tmp_path / FIRST
    damaged = newest / member.removeprefix("missing ")
    if "rows" in member:  # of the last rank
        damaged = tmp_path / "rows" / max(set(read_manifest(newest).row_files) - set(read_manifest(older).row_files))
    damaged.unlink() if member.startswith("missing") else flip(damaged)
    named = newest if member == "missing manifest.json" else damaged
    with pytest.warns(RuntimeWarning, match=f"a checkpoint is damaged and passed over: {named}") as caught:
        assert shards.newest() == older
    assert len(caught) == 1
    for shard in range(num):
        with pytest.raises(CheckpointError, match=str(named)):
            read_checkpoint(newest, shard=shard)
    assert num_shards_of(tmp_path) == num  # of the newest manifest that can be read
    flip(older / "manifest.json")
    with pytest.warns(RuntimeWarning):
        assert shards.newest().startswith(f"{tmp_path}: all 2 checkpoints are damaged; the newest: {tmp_path}")
    again = Shards(tmp_path, num)  # which leaves damaged ones alone, and saves beside them
    again.go_on(Run.steps[0])
    again.open()
    assert again.save(3) is None
    again.close()
    with pytest.warns(RuntimeWarning):
        assert again.check(again.newest()) == 1


@pytest.mark.parametrize(("make", "problem"), [
    (lambda path: path.symlink_to("moved away"), "is a link that leads to no folder"),
    (lambda path: path.symlink_to(path), "is a link that leads to no folder"),
    (lambda path: path.symlink_to(path.parent), "is no checkpoint: it has no manifest"),
    (lambda path: path.write_text(""), "is no folder"),
])  # fmt: skip
def test_what_has_a_checkpoints_name_is_never_passed_over_in_silence(
    make: Callable[[Path], object], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint-000000000007"
    make(path)
    with (
        pytest.warns(RuntimeWarning, match=f"a checkpoint is damaged and passed over: {path}: {problem}"),
        pytest.raises(CheckpointError, match=rf"all 1 checkpoints are damaged; the newest: {path}: {problem}\."),
    ):
        opened(tmp_path).open_newest()


@pytest.mark.usefixtures("small_files")
def test_a_link_stands_for_the_checkpoint_that_it_leads_to(tmp_path: Path) -> None:
    run, made = Run(), opened(tmp_path / "archive")
    run.go_on(70)
    made.save(run.state(), 7, None)
    made.close()
    archived = tmp_path / "archive" / "checkpoint-000000000007"
    (tmp_path / "run").mkdir()
    link = tmp_path / "run" / archived.name
    link.symlink_to(archived)
    made = opened(tmp_path / "run", keep_last=1)
    assert newest_in(made) == link
    assert run.check(newest_in(made)) == 1
    run.go_on(3)
    made.save(run.state(), 8, None)  # which takes the place of the link, and leaves its checkpoint alone
    made.close()
    assert names(tmp_path / "run") == ["checkpoint-000000000008", "lock", "rows"]
    assert run.check(newest_in(made)) == 2
    read_checkpoint(archived)


def test_leftovers_of_killed_saves_are_removed_and_nothing_else(tmp_path: Path) -> None:
    assert newest_in(CheckpointStore(tmp_path / "nothing", 1, 1)) is None
    made = opened(tmp_path)
    made.save(state(1), 1, None)
    made.close()
    others = ["notes.txt", ".checkpoint-mine", "checkpoint-old", "checkpoint-5.tmp", ".git"]
    for name in others:
        (tmp_path / name).mkdir()
    for name in (".checkpoint-000000000005.1-2-3-4.new", ".checkpoint-000000000004-2.1-2-3-4.gone"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "rows" / "buffer-000000000000-000000000009.safetensors").write_text("unlisted, or half written")
    (tmp_path / "rows" / "mine.safetensors").write_text("not ours")
    opened(tmp_path).close()
    assert newest_in(made) == tmp_path / FIRST
    assert names(tmp_path) == sorted([FIRST, "lock", "rows", *others])
    assert names(tmp_path / "rows") == ["mine.safetensors"]


@each_rank
@pytest.mark.parametrize("file", ["rows", "part"])
@pytest.mark.usefixtures("small_files")
def test_a_failed_save_is_raised_and_nothing_else_is_lost(
    num: int, rank: int, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = saved(tmp_path, num, 1, keep_last=1)
    before, write_member = names(tmp_path / "rows"), checkpoint_folder.write_member

    def fail(path: Path, packed: Any) -> Any:
        entry = write_member(path, packed)
        if path.name.startswith("shard1_") == (rank == 1) and (path.parent.name == "rows") == (file == "rows"):
            raise OSError(errno.ENOSPC, "disk full")
        return entry

    cause = f"{f'rank {rank} of 2: ' if num > 1 else ''}OSError: [Errno 28] disk full"
    text = f"{tmp_path}: step 40 could not be saved ({cause}). The newest one is {tmp_path / FIRST}."
    for steps in Run.steps[1:4]:
        shards.go_on(steps)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_folder, "write_member", fail)
            patch.setattr(store, "write_member", fail)
            assert shards.save(40) == text
        assert shards.error is not None
        assert isinstance(shards.error.__cause__, OSError if num == 1 else CheckpointError)
        assert names(tmp_path) == [FIRST, "lock", "rows"]
        assert names(tmp_path / "rows") == before
    assert shards.save(40) is None
    shards.close()
    assert shards.check(shards.newest()) == 4
    assert names(tmp_path) == ["checkpoint-000000000040", "lock", "rows"]
    assert_clean(tmp_path)


@each_number_of_ranks
def test_a_first_save_that_fails_has_none_before_it(num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = saved(tmp_path, num, 0)
    shards.go_on(5)
    monkeypatch.setattr(store, "write_manifest", lambda *_, **__: 1 // 0)
    said = shards.save(1)
    cause = "rank 0 of 2: ZeroDivisionError: " if num > 1 else "ZeroDivisionError: "
    assert said.startswith(f"{tmp_path}: step 1 could not be saved ({cause}")
    assert said.endswith("). There is none before it.")
    shards.close()
    assert names(tmp_path) == ["lock", "rows"]
    assert names(tmp_path / "rows") == []


@each_rank
def test_what_cannot_be_saved_is_said_and_nothing_is_written(num: int, rank: int, tmp_path: Path) -> None:
    shards = saved(tmp_path, num, 1)
    before, run = names(tmp_path / "rows"), shards.runs[rank]
    shards.go_on(3)
    run.state = lambda: {"buffer": live_state(run.buffer), "b": {"x": object()}}  # type: ignore[method-assign]
    owner = f"rank {rank} of 2: TypeError: " if num > 1 else ""
    assert shards.save(2).startswith(f"{owner}b.x: a state holds tensors and plain values; got ")
    shards.close()
    assert names(tmp_path) == [FIRST, "lock", "rows"]
    assert names(tmp_path / "rows") == before


@each_number_of_ranks
def test_a_store_writes_while_it_is_open_and_holds_its_lock(num: int, tmp_path: Path) -> None:
    shards, other = Shards(tmp_path, num), Shards(tmp_path)
    holder = f"{tmp_path}: is written by process {os.getpid()} on "
    assert shards.save(1) == f"{tmp_path}: is not open for writing. Call open() first."
    shards.close()
    other.open()
    assert shards.open().startswith(holder)
    other.close()
    for _ in range(2):
        assert shards.open() is None
    assert re.match(f"{holder}.*, and a run has one", other.open())
    shards.stores[0]._lock.path.unlink()
    other.open()
    said = f"{tmp_path}: step 1 could not be saved ("
    assert re.match(f"{re.escape(said)}.*is written by process {os.getpid()} on .* too", shards.save(1))
    for each in (shards, other, other):
        each.close()
    assert other.newest() is None


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(CheckpointError, match=rf"{directory}: could not be written \("):
            opened(directory)
    made = opened(tmp_path / "run")
    made.save(state(1), 1, None)
    made.close()
    with pytest.raises(CheckpointError, match="is a checkpoint, and cannot hold those of a run"):
        opened(tmp_path / "run" / FIRST)


class _Stream:
    """A file that counts what is written."""

    def __init__(self, stream: Any, calls: "Calls") -> None:
        self._stream, self._calls = stream, calls

    def write(self, data: Any) -> int:
        self._calls()
        half = len(data) // 2
        self._stream.write(data[:half])  # a part of it arrives
        self._stream.flush()
        self._calls()
        return int(self._stream.write(data[half:])) + half

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        self._stream.close()


class Calls:
    """Counts what the package asks of the system to write, and does something at one of the calls."""

    def __init__(self, at: int, act: Callable[[], Any]) -> None:
        self.count, self.at, self.act = 0, at, act

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.act()

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self()
            return function(*args, **kwargs)

        return wrapped

    def install(self, patch: Callable[[Any, str, Any], None]) -> None:
        for name in ("replace", "fsync", "mkdir", "unlink", "rmdir", "listdir", "ftruncate", "pwrite"):
            patch(os, name, self.wrap(getattr(os, name)))
        opener = builtins.open

        def counted(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not {"w", "x"} & set(mode):
                return opener(file, mode, *args, **kwargs)
            self()
            stream = opener(file, mode, *args, **kwargs)
            return _Stream(stream, self)

        patch(builtins, "open", counted)


def third_save(folder: Path, num: int) -> Shards:
    """Return a run before its third save, which prunes the first."""
    shards = Shards(folder, num, keep_last=2, capacity=20)
    for steps in Run.steps[:3]:
        shards.go_on(steps)
    assert shards.open() is None
    return shards


def assert_clean(directory: Path) -> None:
    listed = {name for path in directory.glob("checkpoint-*") for name in read_manifest(path).row_files}
    assert set(names(directory / "rows")) == listed
    assert not [name for name in names(directory) if name.startswith(".")]
    for path in directory.glob("checkpoint-*"):
        read_checkpoint(path)


@pytest.mark.full
@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize(("num", "number", "step"), [(1, errno.ENOSPC, 1), (1, errno.EROFS, 5), (2, errno.ENOSPC, 5)])
def test_whatever_the_system_refuses_at_any_call(
    num: int, number: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # hundreds of saves
    saved(tmp_path / "two", num, 2, capacity=20).close()
    num_failed = 0
    for at in range(1, 1000, step):
        shutil.copytree(tmp_path / "two", folder := tmp_path / str(at))
        shards, calls = third_save(folder, num), Calls(at, fail)
        with monkeypatch.context() as patch:
            calls.install(patch.setattr)
            said = shards.save(3)
        if calls.count < at:
            break
        newest = shards.newest()
        found = shards.check(newest)
        if said is None:
            assert found == 3
        else:
            num_failed += 1
            assert os.strerror(number) in said
            assert num == 1 or "rank " in said
            assert "could not be written" in said or said.endswith(f"The newest one is {newest}.")
        assert shards.save(4) is None
        shards.close()
        opened(folder).close()
        assert shards.check(shards.newest()) == 3
        assert_clean(folder)
        shutil.rmtree(folder)
    assert num_failed * step > (20 if num == 1 else 50)


def die_at(folder: Path, num: int, at: int) -> None:
    """Save, and die at a call of the save."""
    buffer_state.MIN_NBYTES, buffer_state.MAX_NBYTES = 100, 200
    shards, calls = third_save(folder, num), Calls(at, lambda: os.kill(os.getpid(), 9))
    os.fsync = lambda descriptor: None
    calls.install(setattr)
    shards.save(3)
    os._exit(0 if calls.count < at else 1)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize(("num", "step"), [(1, 1), (2, 9)])
def test_whenever_it_is_killed_the_newest_is_whole_and_leftovers_go(num: int, step: int, tmp_path: Path) -> None:
    saved(tmp_path / "two", num, 2, capacity=20).close()
    context, found = multiprocessing.get_context("fork"), []
    for at in range(1, 1000, step):
        shutil.copytree(tmp_path / "two", folder := tmp_path / str(at))
        process = context.Process(target=die_at, args=(folder, num, at))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -9
        shards = Shards(folder, num, capacity=20)
        assert shards.open() is None
        found.append(shards.check(shards.newest()))
        shards.close()
        assert_clean(folder)
        shutil.rmtree(folder)
    assert found == sorted(found) or num > 1  # threads take turns as they like
    assert set(found) == {2, 3}
    assert len(found) * step > 30


@pytest.mark.full
@pytest.mark.usefixtures("small_files", "collected")
def test_an_interrupt_at_any_line_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    run, made, line = Run(20), opened(tmp_path, keep_last=1), 0
    watched = ("checkpoint/store.py",)
    run.go_on(run.steps[0])
    while True:
        with interrupted_at(line, KeyboardInterrupt(), watched) as reached, suppress(KeyboardInterrupt):
            made.save(run.state(), line, None)
        if not reached:
            break
        made.save(run.state(), line, None)
        assert run.check(newest_in(made)) == 1
        line += 1
    made.close()
    assert line > 30
    assert_clean(tmp_path)
