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
        signals: connected; its time-out holds for `receive`.
        stays_awake: look for the byte again and again at first, leaving the core to whoever has work. Only where there
            are as many cores as processes that work.
    """

    def __init__(self, signals: socket.socket, stays_awake: bool) -> None:
        self._signals, self._stays_awake = signals, stays_awake and hasattr(select, "poll")
        if self._stays_awake:
            self._poll = select.poll()
            self._poll.register(signals, select.POLLIN)

    def receive(self) -> bytes:
        """Return the next byte, or nothing where the other end is closed.

        Raises:
            TimeoutError: none came within the socket's time-out.
        """
        if self._stays_awake:
            until = time.perf_counter() + AWAKE
            while not self._poll.poll(0) and time.perf_counter() < until:
                _let_others_run()
        return self._signals.recv(1)
