"""One writer per folder: who is refused and told whom, and whose lock is taken over."""

import errno
import json
import multiprocessing
import os
import platform
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rltrainer.checkpoint.folder_lock import FolderLock
from rltrainer.errors import CheckpointError


def hold(folder: Path, is_held: Any) -> None:
    lock = FolderLock(folder)
    lock.acquire()
    is_held.set()
    time.sleep(60)


def hold_elsewhere(folder: Path) -> Any:
    context = multiprocessing.get_context("fork")
    is_held = context.Event()
    process = context.Process(target=hold, args=(folder, is_held))
    process.start()
    assert is_held.wait(20)
    return process


def test_a_second_process_is_told_who_holds_it_and_takes_over_when_that_is_killed(tmp_path: Path) -> None:
    process = hold_elsewhere(tmp_path)
    lock = FolderLock(tmp_path)
    who = f"is written by process {process.pid} on {platform.node()}, and a run has one writer"
    with pytest.raises(CheckpointError, match=who) as caught:
        lock.acquire()
    assert str(caught.value).startswith(f"{tmp_path}: ")
    assert str(caught.value).endswith("Wait for its end, or save elsewhere.")
    process.kill()
    process.join()
    lock.acquire()
    lock.check()
    lock.release()
    assert not lock.is_held
    first, second = lock, FolderLock(tmp_path)  # two in one process
    first.acquire()
    with pytest.raises(CheckpointError, match=f"is written by process {os.getpid()} on"):
        second.acquire()
    first.check()
    first.release()
    second.acquire()
    second.release()
    second.release()
    first.acquire()
    with pytest.raises(CheckpointError, match="a run has one writer"):
        second.wait(0.0)
    threading.Timer(0.1, first.release).start()
    second.wait().release()
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_forked_worker_that_outlives_its_run_does_not_hold_the_lock(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    other = FolderLock(tmp_path)
    with pytest.raises(CheckpointError):
        other.acquire()  # the worker's copy of the lock did not free it
    os.close(lock._descriptor)  # type: ignore[arg-type]  # as a death would
    lock._descriptor = None
    deadline = time.monotonic() + 10
    while not other.is_held:
        try:
            other.acquire()
        except CheckpointError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    worker.kill()
    worker.join()
    other.release()


def without_locks(monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOLCK) -> None:
    """Put a file system without locks in the place of this one."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_the_contents_decide(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = hold_elsewhere(tmp_path)
    without_locks(monkeypatch, number)
    lock = FolderLock(tmp_path)
    with pytest.raises(CheckpointError, match=rf"process {process.pid} on .* remove {tmp_path / 'lock'}: this file"):
        lock.acquire()
    process.kill()
    process.join()
    lock.acquire()
    with pytest.raises(CheckpointError, match=f"process {os.getpid()} on"):
        FolderLock(tmp_path).acquire()
    lock.release()
    again = FolderLock(tmp_path)
    again.acquire()
    again.release()


@pytest.mark.parametrize("text", ["", "x", "[]", "3", "{}", '{"pid": 1}', "[" * 4000, '{"pid": -1}', "\0" * 10_000])
def test_a_lock_file_that_names_nobody(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_locks(monkeypatch)
    (tmp_path / "lock").write_text(text)
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.check()
    lock.release()


@pytest.mark.parametrize("changes", [{"place": "another boot"}, {"pid": 1}, {"pid": 10**30}])
@pytest.mark.parametrize("pid", [0, -1, True, "1", None])
def test_without_locks_a_holder_of_whom_nothing_is_known_may_live_and_one_without_a_number_is_none(
    changes: dict[str, Any], pid: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_locks(monkeypatch)
    lock, other = FolderLock(tmp_path), FolderLock(tmp_path)
    lock.acquire()
    holder = json.loads(lock.path.read_text())
    lock.path.write_text(json.dumps(holder | changes))
    with pytest.raises(CheckpointError, match="and a run has one writer"):
        other.acquire()
    lock.path.write_text(json.dumps(holder | {"pid": pid}))
    other.acquire()


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_a_lock_that_is_no_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda p: os.symlink("elsewhere", p)}[kind](path)
    with pytest.raises((CheckpointError, OSError)) as caught:
        FolderLock(tmp_path).acquire()
    assert str(path) in str(caught.value)
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_that_somebody_removed_or_took(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.path.unlink()
    with pytest.raises(CheckpointError, match="lock: was removed while this process writes here"):
        lock.check()
    other = FolderLock(tmp_path)
    other.acquire()
    with pytest.raises(CheckpointError, match=f"{tmp_path}: is written by process {os.getpid()} on .* too"):
        lock.check()
    other.release()
    with pytest.raises(CheckpointError, match="is written by another process too"):
        lock.check()
