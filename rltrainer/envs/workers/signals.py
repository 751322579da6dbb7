"""Waiting for a byte from another process."""

import os
import select
import socket
import time

AWAKE = 1e-3
"""Seconds that a process waits awake before it falls asleep. Waking one up takes longer than a fast env's step; an
update between two steps takes so long that nobody should stay awake for it."""

_let_others_run = getattr(os, "sched_yield", lambda: time.sleep(0))


class Inbox:
    """The receiving end of a socket.

    Args:
        signals: connected.
        stays_awake: look for the byte again and again at first, leaving the core to whoever has work. Only where there
            are as many cores as processes that work.
        timeout: seconds to wait for it; None waits as long as it takes. No time-out of the socket: that would raise a
            `TimeoutError`, which nobody could tell from one that the handler of a signal raises.
    """

    def __init__(self, signals: socket.socket, stays_awake: bool, timeout: float | None = None) -> None:
        self._signals, self._timeout = signals, timeout
        self._poll = select.poll() if hasattr(select, "poll") else None
        self._stays_awake = stays_awake and self._poll is not None
        if self._poll is not None:
            self._poll.register(signals, select.POLLIN)

    def wait(self) -> bool:
        """Wait until there is a byte, or the other end is closed; return False where neither happened in time."""
        if self._stays_awake:
            until = time.perf_counter() + AWAKE
            while time.perf_counter() < until:
                if self._look(0.0):
                    return True
                _let_others_run()
        return self._look(self._timeout)

    def receive(self) -> bytes:
        """Return the next byte, or nothing where the other end is closed, however long that takes."""
        if self._stays_awake:
            self.wait()
        return self._signals.recv(1)

    def _look(self, seconds: float | None) -> bool:
        if self._poll is not None:
            return bool(self._poll.poll(None if seconds is None else seconds * 1000))
        return bool(select.select([self._signals], [], [], seconds)[0])
