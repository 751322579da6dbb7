"""The parent's side of a process of ours: starts it, asks it, finds out what became of it, ends it."""

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.context import BaseContext
from typing import Any

from rltrainer.envs.workers.by_value import dumps
from rltrainer.envs.workers.shared_arrays import PULSE_SIZE, make_file, map_pulse
from rltrainer.envs.workers.signals import Inbox
from rltrainer.envs.workers.start_methods import own_folder
from rltrainer.envs.workers.worker_envs import QUIT, STEP, Failure
from rltrainer.envs.workers.worker_process import DONE, PAYLOAD, run_worker
from rltrainer.errors import EnvError

TICK = 0.25
"""Seconds after which a parent that waits for an answer looks whether its workers are alive."""

GRACE = 3.0
"""Seconds that workers have to close their envs."""

STARTING = -2
"""The pulse of a process that has not begun with its first command: imports take the time that they take."""


class WorkerLostError(EnvError):
    """A worker process died, or one of its envs hangs."""


class Child:
    """A process that answers one command after the other, as `run_worker` says.

    A subclass says in errors who it is. The process shows by its pulse, a number in shared memory, that it gets on.

    Args:
        context: how the process starts.
        server, arguments: the class of what answers there, and what it is made with.
        timeout: seconds in which the pulse must change while a command is done; None for any time.
        stays_awake: both sides, for the next command; see `Inbox`.

    Attributes:
        signals: readable when it has answered, or is dead.
        when, command: what it was told last; see `send`.
        is_busy: whether it owes an answer.

    Raises:
        EnvError: the process cannot be started.
    """

    timeout_name = "step_timeout"

    def __init__(
        self,
        context: BaseContext,
        server: Callable[..., Any],
        arguments: tuple[Any, ...],
        timeout: float | None,
        stays_awake: bool,
    ) -> None:
        self.is_busy, self._is_torn, self._timeout = False, False, timeout
        self._seen: int | None = None  # the pulse, and since when
        self.signals, their_signals = socket.socketpair()
        self._pipe, their_pipe = context.Pipe()
        self._inbox = Inbox(self.signals, stays_awake, TICK if timeout is None else min(TICK, timeout / 4))
        file = make_file(PULSE_SIZE)
        self._pulse = map_pulse(file)
        self._pulse[0] = STARTING
        child_arguments = (their_signals, their_pipe, server, arguments, stays_awake, own_folder())
        self._process: Any = context.Process(target=run_worker, args=child_arguments, daemon=True)  # type: ignore[attr-defined]  # every context has it
        try:
            self._process.start()
            with contextlib.suppress(ConnectionError):  # of one that is dead already, which `receive` tells
                socket.send_fds(self.signals, [b"."], [file])
        except BaseException as error:
            self._close_connections()
            if not isinstance(error, Exception):
                raise
            raise EnvError(self._start_text(error)) from error
        finally:
            os.close(file)
            # Only the worker holds its ends then, and its death is the end of file here.
            their_signals.close()
            their_pipe.close()

    def send(self, when: str, command: bytes, *arguments: Any, file: int | None = None) -> None:
        """Send a command; `receive` tells if the process is dead, and during what: `when`.

        Args:
            when: what it does, for errors.
            command: one byte; arguments follow it, but for STEP and QUIT.
            arguments: of the command.
            file: a descriptor that the command will ask for.
        """
        if self._is_torn:
            raise WorkerLostError(f"{self._who()}: an interrupt tore the last command or its answer")
        if self.is_busy:  # with what an interrupt kept the parent from receiving
            self.receive()
        data = dumps(arguments) if command != STEP else b""  # what cannot travel leaves nothing half-sent
        self.when, self.command, self.is_busy = when, command, True
        self._seen, self._since = None, time.monotonic()
        self._is_torn = True
        try:
            self.signals.send(command)
            if command != STEP:
                self._pipe.send_bytes(data)
            if file is not None:
                socket.send_fds(self.signals, [b"."], [file])
        except OSError:
            if not self._is_disconnected():
                raise  # the user's own, from the handler of a signal
        self._is_torn = False

    def receive(self, watch: Callable[[], None] = lambda: None) -> tuple[Any, Sequence[Failure]]:
        """Wait for the answer, with `watch` called every `TICK` seconds; return the result, and what was raised there.

        Raises:
            WorkerLostError: see `check`.
        """
        try:
            while not self._inbox.wait():
                self.check()
                watch()
            self._is_torn = True
            answer = self.signals.recv(1)
            if not answer:
                raise EOFError
            result: Any = None if answer == DONE else answer
            failures: Sequence[Failure] = ()
            if answer == PAYLOAD:
                result, failures = self._pipe.recv()
        except (EOFError, ConnectionError):
            if not self._is_disconnected():
                raise  # the user's own, from the handler of a signal
            raise WorkerLostError(self._death_text()) from None
        self.is_busy = self._is_torn = False
        return result, failures

    def check(self) -> None:
        """Raise a `WorkerLostError` if a process that has not answered is dead, or does not get on."""
        if not self._process.is_alive():
            raise WorkerLostError(self._death_text())
        pulse = int(self._pulse[0])
        if self._timeout is None or pulse == STARTING or connection.wait([self.signals], 0):
            return  # it has time, or has answered, and waits for its turn to be heard
        now = time.monotonic()
        if pulse != self._seen:
            self._seen, self._since = pulse, now
        elif now - self._since >= self._timeout:
            limit = f"{self.timeout_name}={self._timeout:g} seconds"
            raise WorkerLostError(f"{self._who(pulse)} hung: {self.when} took longer than {limit}")

    def _who(self, pulse: int | None = None) -> str:
        """Name the process, or what in it the pulse is of."""
        raise NotImplementedError

    def _start_text(self, error: Exception) -> str:
        """Say that it cannot be started."""
        raise NotImplementedError

    def _is_disconnected(self) -> bool:
        """Return whether the process is gone, or at least its end of the connection."""
        try:
            is_open = self.signals.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            self._process.join(0.5)  # who dies closes one connection after the other
            is_open = True
        except OSError:
            is_open = False
        return not (is_open and self._process.is_alive())

    def _how_it_died(self) -> tuple[str, bool]:
        """Return what became of the process, and if that is how failed imports end."""
        self._process.join(1.0)
        code = self._process.exitcode
        if code is None:
            return "closed the connection to the parent", False
        if code < 0:
            names = {int(number): number.name for number in signal.Signals}
            return f"was killed by {names.get(-code, f'signal {-code}')}", False
        return f"exited with code {code}", True

    def _death_text(self) -> str:
        """Say how the process died, and when."""
        return f"{self._who()} {self._how_it_died()[0]} during {self.when}"

    def _close_connections(self) -> None:
        self.signals.close()
        self._pipe.close()


START_HINT = (
    "; the worker's own error is printed above. Its process must be able to import the module that makes the envs: "
    "a script starts its work under `if __name__ == '__main__':`, and a notebook imports its envs from a file"
)


def check_busy(workers: Sequence[Child]) -> None:
    """Find, while one worker is waited for, that another of these was lost; see `Child.check`."""
    for worker in workers:
        if worker.is_busy:
            worker.check()


def end_workers(workers: list[Any], owner: int, grace: float = GRACE) -> None:
    """End processes and empty the list, in at most two seconds more than they have to close their envs; never raises.

    A fork of the process `owner` that started them has copies of these objects, and ends nothing. An interrupt, which
    does go on to who called, ends them at once.
    """
    if os.getpid() != owner:
        return
    ending, workers[:] = list(workers), []
    try:
        for worker in ending:
            with contextlib.suppress(OSError):
                worker.signals.send(QUIT)
                worker._pipe.close()  # for one that waits for arguments, which an interrupt kept from being sent
        deadline = time.monotonic() + grace
        for end in (lambda process: None, lambda process: process.terminate(), lambda process: process.kill()):
            for worker in ending:
                if worker._process.exitcode is None:
                    end(worker._process)
            for worker in ending:
                worker._process.join(max(0.0, deadline - time.monotonic()))
            deadline = time.monotonic() + 0.8
        for worker in ending:
            worker._close_connections()
            if worker._process.exitcode is not None:
                worker._process.close()
    except BaseException as error:
        for worker in ending:
            with contextlib.suppress(Exception):
                worker._process.kill()
                worker._close_connections()
        if not isinstance(error, Exception):
            raise
        logging.getLogger("rltrainer").warning("ending the worker processes failed: %r", error)
