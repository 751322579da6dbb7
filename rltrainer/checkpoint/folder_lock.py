"""One writer per folder: a lock that the system takes back when its holder dies, on a file that names the holder."""

# `filelock` is no replacement: it names no holder, fails on file systems that answer a lock with ENOLCK, and its older
# versions leave the lock to the forked workers of a killed run.

import contextlib
import errno
import json
import os
import platform
import secrets
import stat
import time
import weakref
from pathlib import Path
from typing import Any, Self

from rltrainer.errors import CheckpointError
from rltrainer.files.atomic_write import host_id, process_exists
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import open_regular

# Bytes of a lock file that are read.
MAX_SIZE = 1 << 12
# Errors of file systems without locks, such as some network file systems.
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class FolderLock:
    """The lock of a folder: `flock` on its file `lock`, which names the process that holds it."""

    # If a file system has no locks, the contents decide: a lock is free if they name no process, or a dead one of
    # this machine.

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "lock"
        self._descriptor: int | None = None
        self._holder: dict[str, Any] | None = None
        _locks.add(self)

    @property
    def is_held(self) -> bool:
        """True if the lock was acquired and not released."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            CheckpointError: another one holds it; the text names process and host.
            OSError: the file cannot be written.
        """
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(self.path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CheckpointError(f"{self.path}: is no regular file")
            found = _read(descriptor)
            try:
                is_taken = not _lock(descriptor) and found is not None and not _is_dead(found)
                hint = f"If it is over, remove {self.path}: this file system has no locks that end with their holder."
            except BlockingIOError:
                is_taken, hint = True, "Wait for its end, or save elsewhere."
            if is_taken:
                text = f"{self.folder}: is written by {_text(found)}, and a run has one writer."
                raise CheckpointError(f"{text} {hint}")
            # `flock` decides who holds the lock; the contents name the holder, and decide where there is no `flock`.
            # The place tells containers apart, which share process ids; the token tells locks of one process apart.
            token = secrets.token_hex(8)
            self._holder = {"pid": os.getpid(), "host": platform.node(), "place": host_id(), "token": token}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(self._holder).encode(), 0)
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def wait(self, seconds: float = 120.0) -> Self:
        """Take the lock as `acquire` does, if its holder ends in time: a process of a killed program may still save."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.acquire()
                return self
            except CheckpointError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def check(self) -> None:
        """Raise a `CheckpointError` if another process took the lock, as where a network file system loses it."""
        try:
            with open_regular(self.path) as stream:
                found = _read(stream.fileno())
        except FileNotFoundError:
            raise CheckpointError(f"{self.path}: was removed while this process writes here") from None
        if found != self._holder:
            raise CheckpointError(f"{self.folder}: is written by {_text(found)} too")

    def release(self) -> None:
        """Give the lock back, if it is held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)  # names no process any more, for file systems without locks
            os.close(descriptor)


_locks: "weakref.WeakSet[FolderLock]" = weakref.WeakSet()


def _close_in_child() -> None:
    # In a forked child: a worker that outlives a killed run must not hold its lock.
    for lock in list(_locks):
        descriptor, lock._descriptor = lock._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _lock(descriptor: int) -> bool:
    """Lock a file, and return whether the file system has locks; a `BlockingIOError` says that it is locked."""
    try:
        import fcntl  # Windows has none

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def _read(descriptor: int) -> dict[str, Any] | None:
    """Return the holder in a lock file; None if it names none."""
    with contextlib.suppress(ValueError):
        found = read_json(os.pread(descriptor, MAX_SIZE, 0))
        is_named = isinstance(found, dict) and all(isinstance(found.get(name), str) for name in ("host", "place"))
        if is_named and type(found.get("pid")) is int and found["pid"] > 0:
            return dict(found)
    return None


def _is_dead(holder: dict[str, Any]) -> bool:
    """Return whether a process certainly runs no more; processes of other machines and containers cannot be asked."""
    # A process id that was given again counts as alive: the error's text has the way out.
    return holder["place"] == host_id() and not process_exists(holder["pid"])


def _text(holder: dict[str, Any] | None) -> str:
    return "another process" if holder is None else f"process {holder['pid']} on {holder['host']}"
