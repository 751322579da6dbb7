"""One writer per directory: a lock that the system takes back from whoever dies, on a file that says who holds it."""

import contextlib
import errno
import json
import os
import platform
import secrets
import stat
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rltrainer.errors import CheckpointError
from rltrainer.files.json_text import read_json

MAX_SIZE = 1 << 12
"""Bytes of a lock file that are read."""
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems without locks, such as some network file systems."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        pid: its number.
        host: the machine's name.
        place: boot and container in which the number counts; containers have numbers of their own.
        born: when it was started, in the system's ticks: a number is given again.
        token: different for each taking.
    """

    pid: int
    host: str
    place: str
    born: str
    token: str

    @classmethod
    def this(cls) -> "Holder":
        """Return this process."""
        return cls(os.getpid(), platform.node(), _place(), _birth(os.getpid()), secrets.token_hex(8))

    def is_dead(self) -> bool:
        """Return whether it certainly runs no more: nothing is known of other machines and containers."""
        if self.place != _place():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):  # another user's
            return False
        return _birth(self.pid) != self.born

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class DirectoryLock:
    """The lock of a directory: `flock` on its file `lock`, whose contents name the holder.

    The system gives it back when the holder dies, whatever kills it. Where a file system has no locks, the contents
    decide: a holder that is dead, as far as this machine knows, is followed.

    Args:
        directory: what is locked.
    """

    def __init__(self, directory: Path) -> None:
        self.directory, self.path = directory, directory / "lock"
        self._descriptor: int | None = None
        self._holder: Holder | None = None
        _locks.add(self)

    @property
    def is_held(self) -> bool:
        """Tell whether the lock was acquired and not released."""
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
            self._take(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def check(self) -> None:
        """Make sure that nobody else has taken it meanwhile, as where a network file system does not tell.

        Raises:
            CheckpointError: somebody has, or has removed the file.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            raise CheckpointError(f"{self.path}: was removed while this process writes here") from None
        try:
            found = _read(descriptor)
        finally:
            os.close(descriptor)
        if found != self._holder:
            raise CheckpointError(f"{self.directory}: is written by {found or 'another process'} too")

    def release(self) -> None:
        """Give the lock back, if it is held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)  # nobody holds it: for file systems without locks
            os.close(descriptor)

    def close_in_child(self) -> None:
        """Let go of the file in a forked child; the parent still holds the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        """Lock the file, and write into it who holds it."""
        found = _read(descriptor)
        try:
            is_taken = not _lock(descriptor) and found is not None and not found.is_dead()
            hint = f"If it is over, remove {self.path}: this file system has no locks that end with their holder."
        except BlockingIOError:
            is_taken, hint = True, "Wait for its end, or save elsewhere."
        if is_taken:
            who = found or "another process"
            raise CheckpointError(f"{self.directory}: is written by {who}, and a run has one writer. {hint}")
        self._holder = Holder.this()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(self._holder)).encode(), 0)
        os.fsync(descriptor)


_locks: "weakref.WeakSet[DirectoryLock]" = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_locks):
        lock.close_in_child()


if hasattr(os, "register_at_fork"):  # else workers that outlive a killed run would hold its lock
    os.register_at_fork(after_in_child=_close_in_child)


def _lock(descriptor: int) -> bool:
    """Lock a file, and return whether the file system has locks at all.

    Raises:
        BlockingIOError: another one holds it.
    """
    try:
        import fcntl  # Windows has none
    except ImportError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def _read(descriptor: int) -> Holder | None:
    """Return whom a lock file names; None if it names nobody."""
    try:
        plain: Any = read_json(os.pread(descriptor, MAX_SIZE, 0))
        holder = Holder(**plain)
    except (ValueError, TypeError):
        return None
    is_sound = type(holder.pid) is int and holder.pid > 0
    is_sound = is_sound and all(isinstance(text, str) for name, text in plain.items() if name != "pid")
    return holder if is_sound else None


def _place() -> str:
    """Return what tells boots and containers apart in which process numbers count."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return platform.node()


def _birth(pid: int) -> str:
    """Return when a process was started; empty where the system does not say."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""
