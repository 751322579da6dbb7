"""The parent's side of one worker process: starts it, asks it, finds out what became of it, ends it."""

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

from rltrainer.envs.backends.env_group import Env
from rltrainer.envs.workers.shared_arrays import SharedArrays
from rltrainer.envs.workers.signals import Inbox
from rltrainer.envs.workers.worker_envs import ATTACH, QUIT, REMAKE, STEP, Failure, StepResult
from rltrainer.envs.workers.worker_infos import Schema
from rltrainer.envs.workers.worker_process import DONE, PAYLOAD, run_worker
from rltrainer.errors import EnvError

TICK = 0.25
"""Seconds after which a parent that waits for an answer looks whether its workers are alive."""

GRACE = 3.0
"""Seconds that workers have to close their envs."""


class WorkerLostError(EnvError):
    """A worker process died, or one of its envs hangs."""


class Worker:
    """A process that steps some of the envs.

    Args:
        context: how the process starts.
        factories: of its envs.
        first: the index of the first of them.
        number: which worker it is.
        step_timeout: seconds that one env may take for one command; None for any time.
        stays_awake: both sides, for the next step; see `Inbox`.

    Attributes:
        envs, rows: the indices of its envs, as a range and as a slice.
        schema: of the infos that come through shared memory.

    Raises:
        EnvError: the process cannot be started.
    """

    def __init__(
        self,
        context: BaseContext,
        factories: Sequence[Callable[[], Env]],
        first: int,
        number: int,
        step_timeout: float | None,
        stays_awake: bool,
    ) -> None:
        self.envs = range(first, first + len(factories))
        self.rows = slice(self.envs.start, self.envs.stop)
        self.number, self.is_busy, self._is_torn = number, False, False
        self.schema: Schema | None = None
        self._step_timeout = step_timeout
        self._arrays: SharedArrays | None = None
        self._signals, their_signals = socket.socketpair()
        self._pipe, their_pipe = context.Pipe()
        self._signals.settimeout(TICK if step_timeout is None else min(TICK, step_timeout / 4))
        self._inbox = Inbox(self._signals, stays_awake)
        arguments = (their_signals, their_pipe, list(factories), first, stays_awake)
        self._process: Any = context.Process(target=run_worker, args=arguments, daemon=True)  # type: ignore[attr-defined]  # every context has it
        try:
            self._process.start()
        except BaseException as error:
            self._close_connections()
            if not isinstance(error, Exception):
                raise
            raise EnvError(_start_text(first, error)) from error
        finally:
            # Only the worker holds its ends then, and its death is the end of file here.
            their_signals.close()
            their_pipe.close()

    def attach(self, arrays: SharedArrays) -> None:
        """Let the worker map the shared arrays."""
        self.send("its start", ATTACH, arrays.layout, self.number)
        with contextlib.suppress(OSError):  # of a dead worker, which `receive` tells
            socket.send_fds(self._signals, [b"."], [arrays.file])
        self.receive()
        self._arrays = arrays

    def send(self, when: str, command: bytes, *arguments: Any) -> None:
        """Send a command of `worker_envs`; `receive` tells if the worker is dead, and during what: `when`."""
        if self._is_torn:
            envs = f"envs {self.envs.start} to {self.envs.stop - 1}"
            raise WorkerLostError(f"{envs}: an interrupt tore their last answer")
        if self.is_busy:  # with what an interrupt kept the parent from receiving
            self.receive()
        self._when, self._command, self.is_busy = when, command, True
        self._seen, self._since = -1, time.monotonic()
        with contextlib.suppress(OSError):
            self._signals.send(command)
            if command != STEP:
                self._pipe.send(arguments)

    def receive(self, watch: Callable[[], None] = lambda: None) -> tuple[Any, Sequence[Failure]]:
        """Wait for the answer, with `watch` called every `TICK` seconds; return the result, and what the envs raised.

        Raises:
            WorkerLostError: see `check`.
        """
        answer = None
        try:
            while answer is None:
                try:
                    answer = self._inbox.receive()
                except TimeoutError:
                    self.check()
                    watch()
            if not answer:
                raise EOFError
            result: Any = None if answer == DONE else answer
            failures: Sequence[Failure] = ()
            if answer == PAYLOAD:
                self._is_torn = True
                result, failures = self._pipe.recv()
                self._is_torn = False
        except (EOFError, ConnectionError):
            raise WorkerLostError(self._death_text()) from None
        self.is_busy = False
        if isinstance(result, StepResult):
            self.schema = result.schema
        return result, failures

    def check(self) -> None:
        """Raise a `WorkerLostError` if a worker that has not answered is dead, or its env exceeds `step_timeout`."""
        if not self._process.is_alive():
            raise WorkerLostError(self._death_text())
        if self._step_timeout is None or self._arrays is None or self._command == REMAKE:
            return
        if connection.wait([self._signals], 0):
            return  # it has answered, and waits for its turn to be heard
        env, now = int(self._arrays.current[self.number]), time.monotonic()
        if env != self._seen:
            self._seen, self._since = env, now
        elif now - self._since >= self._step_timeout:
            who = self._who(self.envs if env < 0 else [env])
            limit = f"step_timeout={self._step_timeout:g} seconds"
            raise WorkerLostError(f"{who} hung: {self._when} took longer than {limit}")

    def _death_text(self) -> str:
        """Say which envs died with the worker, how, and when."""
        self._process.join(1.0)
        code = self._process.exitcode
        several = len(self.envs) > 1
        if code is None:
            how = "closed the connection to the parent"
        elif code < 0:
            names = {int(number): number.name for number in signal.Signals}
            how = f"{'were' if several else 'was'} killed by {names.get(-code, f'signal {-code}')}"
        else:
            how = f"exited with code {code}"
        current = -1 if self._arrays is None else int(self._arrays.current[self.number])
        where = f", in env {current}" if several and current >= 0 else ""
        hint = "" if self._arrays is not None or code is None or code < 0 else _START_HINT
        return f"{self._who(self.envs)} {how} during {self._when}{where}{hint}"

    def _who(self, envs: Sequence[int]) -> str:
        return f"env{'s' if len(envs) > 1 else ''} {', '.join(map(str, envs))} (pid {self._process.pid})"

    def _close_connections(self) -> None:
        self._signals.close()
        self._pipe.close()


_START_HINT = (
    "; the worker's own error is printed above. Its process must be able to import the module that makes the envs: "
    "a script starts its work under `if __name__ == '__main__':`, and a notebook imports its envs from a file"
)


def end_workers(workers: list[Worker], owner: int, grace: float = GRACE) -> None:
    """End workers and empty the list, in at most two seconds more than they have to close their envs; never raises.

    A fork of the process `owner` that started them has copies of these objects, and ends nothing.
    """
    if os.getpid() != owner:
        return
    ending, workers[:] = list(workers), []
    try:
        for worker in ending:
            with contextlib.suppress(OSError):
                worker._signals.send(QUIT)
        deadline = time.monotonic() + grace
        for end in (lambda process: None, lambda process: process.terminate(), lambda process: process.kill()):
            for worker in ending:
                if worker._process.exitcode is None:
                    end(worker._process)
            for worker in ending:
                worker._process.join(max(0.0, deadline - time.monotonic()))
            deadline = time.monotonic() + 1.0
        for worker in ending:
            worker._close_connections()
            if worker._process.exitcode is not None:
                worker._process.close()
    except Exception as error:
        logging.getLogger("rltrainer").warning("ending the worker processes failed: %r", error)


def _start_text(first: int, error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    if type(error).__name__ in ("PicklingError", "AttributeError", "TypeError"):
        return (
            f"env {first}: the factory cannot travel to a worker process ({text}). Define it, and its wrappers, as "
            "functions or classes at the top level of a module, or use start_method='fork' or backend='sync'."
        )
    return f"env {first}: its worker process cannot be started: {text}"
