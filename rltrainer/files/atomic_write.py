"""Writing so that a crash leaves the old contents or the new, never a part: a hidden name, a flush, one rename."""

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def write_errors(path: Path, error: type[Exception]) -> Iterator[None]:
    """Raise an `OSError` (a full disk, a place that is read-only) as `error`, with path and cause."""
    try:
        yield
    except OSError as cause:
        raise error(f"{path}: could not be written ({cause}). What was there before is unchanged.") from cause


@contextlib.contextmanager
def replaced_file(path: Path, *, survives_power_loss: bool = True) -> Iterator[BinaryIO]:
    """Open a stream whose contents replace a file at the end; an `OSError` leaves the file as it was."""
    path = Path(os.path.realpath(path))  # a link stays; its target is replaced
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no regular file")
    make_folder(path.parent)
    remove_abandoned(path, "tmp")
    temporary = hidden_name(path, "tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            # Without this a power loss may keep the new name and lose the contents: the file system orders neither.
            # It takes milliseconds.
            if survives_power_loss:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        remove(temporary)
    # A rename is an entry of the folder, which has a flush of its own.
    if survives_power_loss:
        sync_folder(path.parent)


def refuse_links(paths: Iterable[Path], error: type[Exception]) -> None:
    """Raise `error` if a path is a symbolic link: a write there would change what lies somewhere else."""
    for path in paths:
        if path.is_symlink():
            hint = "Remove the link, or put what it leads to in its place."
            raise error(f"{path}: is a link, and nothing is written through a link here. {hint}")


def hidden_name(path: Path, suffix: str) -> Path:
    """Return an unused name beside `path`."""
    # No two saves share a name, and leftovers of killed saves are found by their names.
    owner = f"{os.getpid()}-{host_id()}-{threading.get_ident()}-{secrets.token_hex(8)}"
    return path.with_name(f".{path.name}.{owner}.{suffix}")


def hidden_names(path: Path, suffix: str) -> list[tuple[Path, str]]:
    """Return the hidden names beside `path`, with the owner in each."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.([0-9]+(?:-[0-9a-f]+)*)\.{suffix}")
    try:
        names = os.listdir(path.parent)
    except OSError:
        return []
    return [(path.with_name(match[0]), match[1]) for match in map(pattern.fullmatch, names) if match is not None]


def remove_abandoned(path: Path, suffix: str) -> None:
    """Remove the hidden names beside `path` that killed saves of this host left."""
    for leftover, owner in hidden_names(path, suffix):
        if is_running(owner) is False:
            remove(leftover)


def remove(path: Path) -> None:
    """Remove a file or folder of our own; if that fails, the next save removes it."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents, their names flushed to disk; nothing if it exists."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder, or the contents of a file, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_flushed(temporary: Path, path: Path) -> None:
    """Flush a file that another program wrote, rename it to `path`, and flush the new name."""
    sync_folder(temporary)
    os.replace(temporary, path)
    sync_folder(path.parent)


def is_running(owner: str) -> bool | None:
    """Return whether the save whose hidden names hold this owner is running; None on another host."""
    process, host, thread = [*owner.split("-"), "", ""][:3]
    if host not in ("", host_id()):
        return None  # its processes cannot be asked
    if int(process) == os.getpid():
        # The thread that asks is in no other save.
        return thread in {str(other.ident) for other in threading.enumerate()} - {str(threading.get_ident())}
    # Another program may have a dead process's number by now: then the leftovers wait for a later save.
    return process_exists(int(process))


def process_exists(number: int) -> bool:
    """Return whether a process of this machine runs; True for a process that cannot be asked."""
    try:
        os.kill(number, 0)  # signal 0 only asks
    except (OSError, OverflowError) as error:  # a process of another user's lives
        return not isinstance(error, ProcessLookupError)
    return True


def host_id() -> str:
    """Return a text that differs between containers and boots: a process id means another process there."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts += [os.readlink("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id").read_text()]
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()
