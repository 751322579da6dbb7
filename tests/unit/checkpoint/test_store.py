"""The checkpoints of a run: what is written of which moment, what stays, faults at every step, kills, one writer."""

import builtins
import errno
import multiprocessing
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.checkpoint import CheckpointStore, read_checkpoint, store, write_checkpoint
from rltrainer.checkpoint.folder import read_logged, read_manifest
from rltrainer.checkpoint.store import live_state
from rltrainer.data import buffer_state
from rltrainer.errors import CheckpointError
from tests.unit.checkpoint.test_folder import interrupted_at
from tests.unit.data.reference import World, add_step, make_buffer
from tests.unit.data.test_replay_file import same


def opened(directory: Path, keep_last: int | None = None, keep_best: int | None = 0) -> CheckpointStore:
    made = CheckpointStore(directory, keep_last, keep_best)
    made.open()
    return made


def state(number: float) -> dict[str, Any]:
    return {"a": {"w": torch.full((3,), float(number))}, "b": {"number": number}}


def number_in(path: Path | None) -> float:
    """Return which state was saved; raises unless the checkpoint is whole."""
    assert path is not None
    states = read_checkpoint(path)
    assert states["a"]["w"].tolist() == [states["b"]["number"]] * 3
    return float(states["b"]["number"])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_state, "MIN_NBYTES", 100)
    monkeypatch.setattr(buffer_state, "MAX_NBYTES", 200)


class Run:
    """A buffer that fills, and a number."""

    def __init__(self, capacity: int = 60) -> None:
        self.buffer, self.world, self.number = make_buffer(capacity, 2), World(0, 2), 0

    def go_on(self, num_steps: int) -> None:
        for _ in range(num_steps):
            add_step(self.buffer, None, self.world.step()[0])
        self.number += 1

    def state(self) -> dict[str, Any]:
        return {"buffer": live_state(self.buffer), **state(self.number)}

    def check(self, path: Path | None) -> int:
        """Assert that a checkpoint holds a buffer as it was at some save, and return which."""
        number = int(number_in(path))
        assert path is not None
        loaded, again = make_buffer(self.buffer.capacity, 2), Run(self.buffer.capacity)
        loaded.load_state_dict(read_checkpoint(path, mapped=("buffer",))["buffer"])
        for i in range(number):
            again.go_on(self.steps[i])
        assert same(loaded, again.buffer, ignored="")
        return number

    steps = (70, 3, 1, 40, 5, 80, 2, 9)


@pytest.mark.usefixtures("small_files")
def test_only_new_rows_are_written_and_checkpoints_share_the_others(tmp_path: Path) -> None:
    run, made = Run(400), opened(tmp_path)
    run.go_on(500)
    made.save(run.state(), 1, None)
    first = set(names(tmp_path / "rows"))
    run.go_on(3)
    made.save(run.state(), 2, None)
    made.close()
    manifests = [read_manifest(tmp_path / f"checkpoint-00000000000{i}") for i in (1, 2)]
    assert [manifest.serial for manifest in manifests] == [1, 2]
    added = set(names(tmp_path / "rows")) - first
    assert len(first) > 50
    assert added == {"buffer-000000000998-000000001004.safetensors"}
    assert first & set(manifests[1].row_files) >= first - {min(first)}  # the oldest file is older than the ring
    assert set(manifests[1].row_files) - first == added


@pytest.mark.usefixtures("small_files")
def test_a_process_that_goes_on_does_not_write_what_is_there(tmp_path: Path) -> None:
    run, made = Run(400), opened(tmp_path)
    run.go_on(500)
    made.save(run.state(), 1, None)
    made.close()
    before = names(tmp_path / "rows")
    again, resumed = opened(tmp_path), Run(400)
    resumed.buffer.load_state_dict(read_logged(tmp_path / "checkpoint-000000000001")["buffer"])
    again.save(resumed.state(), 1, None)
    assert names(tmp_path / "rows") == before
    damaged = tmp_path / "rows" / before[5]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    again.close()
    again = opened(tmp_path)
    again.save(run.state(), 1, None)  # whose files are no longer whole: all rows are written anew
    again.close()
    assert len(names(tmp_path / "rows")) == 2 * len(before)
    newest = again.newest_intact()
    assert newest == tmp_path / "checkpoint-000000000001-3"
    resumed.buffer.load_state_dict(read_checkpoint(newest)["buffer"])
    assert same(resumed.buffer, run.buffer, ignored="")


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
    assert one.check(tmp_path / "checkpoint-000000000001") == 1
    loaded = make_buffer(60, 2)
    loaded.load_state_dict(read_checkpoint(tmp_path / "checkpoint-000000000002")["buffer"])
    assert same(loaded, other.buffer, ignored="")


@pytest.mark.usefixtures("small_files")
def test_rows_that_were_removed_are_written_again_and_a_checkpoint_that_was_read_can_stand_alone(
    tmp_path: Path,
) -> None:
    run, made = Run(), opened(tmp_path / "run")
    run.go_on(70)
    made.save(run.state(), 1, None)
    for path in (tmp_path / "run" / "rows").iterdir():
        path.unlink()
    made.save(run.state(), 2, None)
    made.close()
    for number in (1, 2):
        assert run.check(tmp_path / "run" / f"checkpoint-00000000000{number}") == 1
    write_checkpoint(tmp_path / "alone", read_checkpoint(tmp_path / "run" / "checkpoint-000000000001"))
    shutil.rmtree(tmp_path / "run")
    assert run.check(tmp_path / "alone") == 1


@pytest.mark.usefixtures("small_files")
def test_a_long_run_of_saves_with_few_kept(tmp_path: Path) -> None:
    run, made = Run(), opened(tmp_path, keep_last=2)
    for number, steps in enumerate(run.steps, 1):
        run.go_on(steps)
        made.save(run.state(), 10 * number, None)
        assert names(tmp_path) == sorted(
            [f"checkpoint-{10 * n:012d}" for n in (number - 1, number) if n] + ["lock", "rows"]
        )
        listed = [read_manifest(path).row_files for path in tmp_path.glob("checkpoint-*")]
        assert set(names(tmp_path / "rows")) == {name for entries in listed for name in entries}
        assert run.check(made.newest_intact()) == number
    made.close()


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
            again, newest = make_buffer(capacity, num_envs), made.newest_intact()
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
    assert number_in(made.newest_intact()) == 10


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("member", ["a.safetensors", "manifest.json", "rows", "missing manifest.json", "missing rows"])
def test_a_damaged_one_is_passed_over_with_a_warning(member: str, tmp_path: Path) -> None:
    run, made = Run(), opened(tmp_path)
    for steps in run.steps[:2]:
        run.go_on(steps)
        made.save(run.state(), steps, None)
    made.close()
    newest, older = tmp_path / "checkpoint-000000000003", tmp_path / "checkpoint-000000000070"
    damaged = newest / member.removeprefix("missing ")
    if "rows" in member:
        damaged = tmp_path / "rows" / min(set(read_manifest(newest).row_files) - set(read_manifest(older).row_files))
    damaged.unlink() if member.startswith("missing") else flip(damaged)
    named = newest if member == "missing manifest.json" else damaged
    with pytest.warns(RuntimeWarning, match=f"a checkpoint is damaged and passed over: {named}"):
        assert made.newest_intact() == older
    flip(older / "manifest.json")
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(CheckpointError, match=f"{tmp_path}: all 2 checkpoints are damaged; the newest: {tmp_path}"),
    ):
        made.newest_intact()
    again = opened(tmp_path)  # which leaves damaged ones alone, and saves beside them
    again.save(run.state(), 3, None)
    again.close()
    with pytest.warns(RuntimeWarning):
        assert run.check(made.newest_intact()) == 2


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda path: path.symlink_to("moved away"), "is a link that leads to no folder"),
        (lambda path: path.symlink_to(path), "is a link that leads to no folder"),
        (lambda path: path.symlink_to(path.parent), "is no checkpoint: it has no manifest"),
        (lambda path: path.write_text(""), "is no folder"),
    ],
)
def test_what_has_a_checkpoints_name_is_never_passed_over_in_silence(
    make: Callable[[Path], object], problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint-000000000007"
    make(path)
    with (
        pytest.warns(RuntimeWarning, match=f"a checkpoint is damaged and passed over: {path}: {problem}"),
        pytest.raises(CheckpointError, match=rf"all 1 checkpoints are damaged; the newest: {path}: {problem}\."),
    ):
        opened(tmp_path).newest_intact()


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
    assert made.newest_intact() == link
    assert run.check(made.newest_intact()) == 1
    run.go_on(3)
    made.save(run.state(), 8, None)  # which takes the place of the link, and leaves its checkpoint alone
    made.close()
    assert names(tmp_path / "run") == ["checkpoint-000000000008", "lock", "rows"]
    assert run.check(made.newest_intact()) == 2
    read_checkpoint(archived)


def test_leftovers_of_killed_saves_are_removed_and_nothing_else(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "nothing", 1, 1).newest_intact() is None
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
    assert made.newest_intact() == tmp_path / "checkpoint-000000000001"
    assert names(tmp_path) == sorted(["checkpoint-000000000001", "lock", "rows", *others])
    assert names(tmp_path / "rows") == ["mine.safetensors"]


@pytest.mark.usefixtures("small_files")
def test_a_failed_save_is_raised_and_nothing_else_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, made = Run(), opened(tmp_path, keep_last=1)
    run.go_on(70)
    made.save(run.state(), 1, None)
    before = names(tmp_path / "rows")
    newest = tmp_path / "checkpoint-000000000001"
    text = rf"{tmp_path}: step 2 could not be saved \(OSError: \[Errno 28\] disk full\). The newest one is {newest}\."
    for i in (1, 2, 3):
        run.go_on(run.steps[i])
        with monkeypatch.context() as patch:
            patch.setattr(store, "write_parts", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "disk full")))
            with pytest.raises(CheckpointError, match=text) as caught:
                made.save(run.state(), 2, None)
        assert names(tmp_path) == ["checkpoint-000000000001", "lock", "rows"]
        assert names(tmp_path / "rows") == before
        assert isinstance(caught.value.__cause__, OSError)
    made.save(run.state(), 4, None)
    made.close()
    assert run.check(made.newest_intact()) == 4
    assert names(tmp_path) == ["checkpoint-000000000004", "lock", "rows"]


def test_what_cannot_be_saved_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    run, made = Run(), opened(tmp_path)
    run.go_on(70)
    with pytest.raises(TypeError, match=r"b\.x: a state holds tensors and plain values; got .*object"):
        made.save({"buffer": live_state(run.buffer), "b": {"x": object()}}, 1, None)
    made.close()
    assert names(tmp_path / "rows") == []
    assert made.newest_intact() is None


def test_a_store_writes_while_it_is_open_and_holds_its_lock(tmp_path: Path) -> None:
    made = CheckpointStore(tmp_path, 1, 1)
    with pytest.raises(CheckpointError, match=r"is not open for writing. Call open\(\) first."):
        made.save(state(1), 1, None)
    made.close()
    made.open()
    made.open()
    with pytest.raises(CheckpointError, match=rf"is written by process {os.getpid()} on .*, and a run has one"):
        opened(tmp_path)
    made._lock.path.unlink()
    other = opened(tmp_path)
    with pytest.raises(CheckpointError, match=f"is written by process {os.getpid()} on .* too"):
        made.save(state(1), 1, None)
    for store_ in (made, other, other):
        store_.close()
    assert other.newest_intact() is None


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(CheckpointError, match=rf"{directory}: could not be written \("):
            opened(directory)
    made = opened(tmp_path / "run")
    made.save(state(1), 1, None)
    made.close()
    with pytest.raises(CheckpointError, match="is a checkpoint, and cannot hold those of a run"):
        opened(tmp_path / "run" / "checkpoint-000000000001")


def test_saves_leave_no_files_open(tmp_path: Path) -> None:
    run, made = Run(), opened(tmp_path, keep_last=2)
    for step in range(30):
        run.go_on(3)
        made.save(run.state(), step, None)
    links = [Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd")]
    open_files = [os.readlink(link) for link in links if os.path.lexists(link)]
    assert [name for name in open_files if str(tmp_path) in name] == [str(tmp_path / "lock")]
    made.close()


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


@pytest.fixture
def two_saved(tmp_path: Path, small_files: None) -> Path:
    """Return the directory of a run that saved twice, of which the next save prunes the first."""
    run, made = Run(20), opened(tmp_path / "run")
    for number, steps in enumerate(run.steps[:2], 1):
        run.go_on(steps)
        made.save(run.state(), number, None)
    made.close()
    return tmp_path / "run"


def third_save(directory: Path) -> tuple[Run, CheckpointStore]:
    """Return the run and its store before the third save."""
    run, made = Run(20), opened(directory, keep_last=2)
    for steps in run.steps[:3]:
        run.go_on(steps)
    return run, made


def assert_clean(directory: Path) -> None:
    listed = {name for path in directory.glob("checkpoint-*") for name in read_manifest(path).row_files}
    assert set(names(directory / "rows")) == listed
    assert not [name for name in names(directory) if name.startswith(".")]
    for path in directory.glob("checkpoint-*"):
        read_checkpoint(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_whatever_the_system_refuses_at_any_call(
    number: int, two_saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # hundreds of saves
    at, num_failed = 0, 0
    while True:
        at += 1
        directory, calls = tmp_path / str(at), Calls(at, fail)
        shutil.copytree(two_saved, directory)
        run, made = third_save(directory)
        with monkeypatch.context() as patch:
            calls.install(patch.setattr)
            failure = None
            try:
                made.save(run.state(), 3, None)
            except CheckpointError as error:
                failure = error
        if calls.count < at:
            break
        newest = run.check(made.newest_intact())
        if failure is None:
            assert newest == 3
        else:
            num_failed += 1
            assert os.strerror(number) in str(failure)
            assert "could not be written" in str(failure) or f"The newest one is {made.newest_intact()}" in str(failure)
        made.save(run.state(), 4, None)
        made.close()
        opened(directory).close()
        assert run.check(made.newest_intact()) == 3
        assert_clean(directory)
    assert num_failed > 20


def die_at(directory: Path, at: int) -> None:
    """Save, and die at a call of the save."""
    buffer_state.MIN_NBYTES, buffer_state.MAX_NBYTES = 100, 200
    run, made = third_save(directory)
    calls = Calls(at, lambda: os.kill(os.getpid(), 9))
    os.fsync = lambda descriptor: None
    calls.install(setattr)
    made.save(run.state(), 3, None)
    os._exit(0 if calls.count < at else 1)


@pytest.mark.timeout(300)
def test_whenever_it_is_killed_the_newest_is_whole_and_leftovers_go(two_saved: Path, tmp_path: Path) -> None:
    context, at, found = multiprocessing.get_context("fork"), 0, []
    run = Run(20)
    while True:
        at += 1
        directory = tmp_path / str(at)
        shutil.copytree(two_saved, directory)
        process = context.Process(target=die_at, args=(directory, at))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -9
        made = opened(directory)
        found.append(run.check(made.newest_intact()))
        made.close()
        assert_clean(directory)
    assert found == sorted(found)
    assert set(found) == {2, 3}
    assert at > 30


def test_uniform_rows_cost_little(tmp_path: Path) -> None:
    """A tenth of the buffer that the benchmark takes: 100,000 cells of 17 + 6 floats, of which 1 % change."""
    spaces = [gym.spaces.Box(-1.0, 1.0, (size,), np.float32) for size in (17, 6)]
    buffer, rng = rl.ReplayBuffer(100_000, *spaces, num_envs=10), np.random.default_rng(0)
    made, nbytes, flags = opened(tmp_path), list[int](), np.zeros(10, np.bool_)
    for step, num_rows in enumerate((10_100, 100)):
        for _ in range(num_rows):
            rows = rng.random((10, 40), np.float32)
            buffer.add(rows[:, :17], rows[:, 17:23], rows[:, 39], rows[:, 23:40], flags, flags)
        made.save({"buffer": live_state(buffer)}, step, None)
        nbytes.append(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()))
    made.close()
    assert nbytes[0] > buffer.nbytes * 0.95
    assert nbytes[1] - nbytes[0] < 0.012 * buffer.nbytes


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
        assert run.check(made.newest_intact()) == 1
        line += 1
    made.close()
    assert line > 30
    assert_clean(tmp_path)
