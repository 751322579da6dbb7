"""The connection between a process and its worker."""

import contextlib
import copyreg
import io
import os
import select
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

STEP, CALL = b"s", b"c"
"""Messages to a worker: `step()`; the method of a name, with arguments."""
DONE, RESULT, FAILED, REPORT = b".", b"+", b"!", b"?"
"""Messages to the parent: the result is None; the result; a `Failure`; a value in the middle of a call."""

# Waking a process takes longer than a fast env's step, so one that waits for an answer spins for a while. An update
# between two steps takes so long that spinning on would only waste a core.
AWAKE = 1e-3
"""Seconds that a process spins before it falls asleep."""

yield_core = getattr(os, "sched_yield", lambda: time.sleep(0))

loads = ForkingPickler.loads


def dumps(value: Any) -> bytes:
    """Return a value, with the tensors in it, as bytes that `loads` in another process of this program takes."""
    file = io.BytesIO()
    pickler = ForkingPickler(file)
    # Without the reducers that torch registers: they move a tensor into /dev/shm, which is small in containers.
    pickler.dispatch_table = copyreg.dispatch_table
    pickler.dump(value)
    return file.getvalue()


class Channel:
    """One end of a socket for messages: a byte that says what it is, then a pickled value or a file descriptor."""

    def __init__(self, end: socket.socket, spins: bool = False, timeout: float | None = None) -> None:
        # To spin is to poll for a while before sleeping. It pays only if there is a core for each process that works:
        # else the process that spins has the core on which its answer would be computed.
        self._socket, self._spins = end, spins
        # No time-out of the socket: it would raise a `TimeoutError`, as the handler of a user's signal may do too.
        self._timeout = None if timeout is None else timeout * 1000
        self._pickles = Connection(os.dup(end.fileno()))
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def wait(self) -> bool:
        """Wait until there is a byte, or the other end is closed; return False where neither happened in time."""
        if self._spins:
            until = time.perf_counter() + AWAKE
            while time.perf_counter() < until:
                if self.has_input():
                    return True
                yield_core()
        return bool(self._poll.poll(self._timeout))

    def send(self, kind: bytes, data: bytes | None = None, file: int | None = None) -> None:
        """Send one byte, and what belongs to it: bytes from `dumps`, a file descriptor."""
        self._socket.send(kind)
        if data is not None:
            self._pickles.send_bytes(data)
        if file is not None:
            socket.send_fds(self._socket, [b"."], [file])

    def receive_kind(self) -> bytes:
        """Return the next byte, or nothing where the other end is closed, however long that takes."""
        if self._spins:
            self.wait()
        return self._socket.recv(1)

    def receive_data(self) -> bytes:
        """Return the bytes that belong to the last byte."""
        return self._pickles.recv_bytes()

    def receive_file(self) -> int:
        """Return the file descriptor that belongs to the last byte; an `EOFError` if none came."""
        _, files, _, _ = socket.recv_fds(self._socket, 1, 1)
        if not files:
            raise EOFError
        return files[0]

    def has_input(self) -> bool:
        """Return whether there is something to read, the end of the connection included."""
        return bool(self._poll.poll(0))

    def is_open(self) -> bool:
        """Return whether the other end is open, or has left something to read."""
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except OSError as error:
            return isinstance(error, BlockingIOError)

    def shut_down(self) -> None:
        """End the connection for both ends, even if another process holds a copy of one; never raises."""
        with contextlib.suppress(OSError):  # the other end may be gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
        self._pickles.close()


def wait_for(channels: Sequence[Channel], seconds: float) -> set[int]:
    """Return the descriptors of the channels with input, once there is one or the time is over."""
    poll = select.poll()  # in a tenth of the time of multiprocessing.connection.wait
    for channel in channels:
        poll.register(channel, select.POLLIN)
    return {file for file, _ in poll.poll(seconds * 1000)}
