"""A worker process as its parent sees it: started, called, waited for, found dead or hanging, ended."""

import contextlib
import logging
import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import spawn, util
from multiprocessing.context import BaseContext
from typing import Any, ClassVar, Generic, TypeVar

from rltrainer import errors
from rltrainer.errors import EnvError, ParamsError, RLTrainerError
from rltrainer.processes.channel import CALL, DONE, FAILED, REPORT, STEP, Channel, dumps, loads, wait_for
from rltrainer.processes.program import IDLE, PULSE_LAYOUT, STARTING, Failure, Program, run_program
from rltrainer.processes.shared_arrays import SharedArrays

TICK = 0.25  # seconds between two checks of a waiting parent that its workers are alive
GRACE = 3.0  # seconds that workers have to close their envs

START_HINT = (
    "; the worker's own error is printed above. Its process must be able to import the module that makes the envs: "
    "a script starts its work under `if __name__ == '__main__':`, and a notebook imports its envs from a file"
)

REMOVER = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"

_is_removed = False  # the temporary folder of this program, at its end


class WorkerLostError(EnvError):
    """A worker process died, or one of its envs hangs."""


@dataclass(frozen=True, slots=True)
class Report:
    """A value that a worker sent in the middle of a call."""

    value: Any


def make_context(start_method: str | None, owner: str) -> BaseContext:
    """Return how processes start: by `start_method`, or by a fork server if there is one; else a `ParamsError`."""
    methods = multiprocessing.get_all_start_methods()
    method = start_method or ("forkserver" if "forkserver" in methods else "spawn")
    if method not in methods:
        rule = f"must be one of {', '.join(map(repr, methods))}, or None"
        raise ParamsError.about(owner, "start_method", rule, start_method)
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        # The server imports what takes seconds once, for all workers. Not rltrainer: the server may find another one
        # than this process did.
        context.set_forkserver_preload(["__main__", "torch", "gymnasium"])
        if not _is_removed and multiprocessing.parent_process() is None:  # else it is the parent's
            _remove_at_end(util.get_temp_dir())  # where the server's socket will lie
    return context


def _remove_at_end(folder: str) -> None:
    """Start a process that removes a folder when this program is gone, even if it is killed before a worker runs."""
    global _is_removed
    _is_removed = True
    with contextlib.suppress(OSError):  # without an interpreter to start, a killed program leaves its folder
        remover = subprocess.Popen(
            [spawn.get_executable(), "-I", "-S", "-c", REMOVER, folder],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal to all processes of this program's would end it, too
        )  # fmt: skip
        util.Finalize(None, _end, [remover], exitpriority=-101)  # after multiprocessing's own removal


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()  # a fork of this program may hold its input open


def num_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """A process that makes an object, `program(link, *arguments)`, and serves one call to it after the other.

    An `EnvError` if it cannot start.
    """

    start_hint: ClassVar[str] = ""  # for a process that exits before its first answer, most often in an import

    def __init__(
        self,
        context: BaseContext,
        name: str,
        program: Callable[..., Program],
        arguments: tuple[Any, ...] = (),
        timeout: float | None = None,
        spins: bool = False,
        seconds_to_save: float | None = None,
    ) -> None:
        # `timeout` are the seconds in which the pulse must change during a call. `seconds_to_save` are for a process in
        # a session of its own, after the SIGTERM that ends it.
        self.name, self.when, self.is_busy, self._timeout = name, "its start", False, timeout
        self.ends_by_signal = seconds_to_save is not None
        # Incomplete: an interrupt has cut a message, so that later ones would be taken for parts of it.
        self._has_answered = self._is_incomplete = False
        self._seen: int | None = None  # the last pulse; `_since` is when it came
        here, there = socket.socketpair()
        self.channel = Channel(here, spins, TICK if timeout is None else min(TICK, timeout / 4))
        memory = SharedArrays(PULSE_LAYOUT)
        self.pulse = memory.arrays
        self.pulse[0] = STARTING
        values = (there, program, arguments, spins, seconds_to_save, sys.orig_argv)
        self.process: Any = context.Process(target=run_program, args=values, daemon=True)  # type: ignore[attr-defined]  # every context has it
        try:
            self.process.start()
            with contextlib.suppress(ConnectionError):  # it is dead already; `receive` raises
                self.channel.send(b"", file=memory.file)
        except BaseException as error:
            self.channel.close()
            if not isinstance(error, Exception):
                raise
            raise EnvError(self._start_text(error)) from error
        finally:
            there.close()  # only the worker holds its end now: its death is the end of file here

    def call(self, when: str, name: str, *arguments: Any, file: int | None = None) -> None:
        """Call a method; `when` is for errors, and `file` a descriptor that the method receives."""
        # Pickled before anything is sent: an argument that cannot be pickled leaves the worker usable.
        self._send(when, CALL, dumps((name, arguments)), file)

    def step(self, when: str) -> None:
        """Call `step`, by a single byte."""
        self._send(when, STEP, None, None)

    def reply(self, value: Any) -> None:
        """Answer a question that came as a `Report`."""
        with contextlib.suppress(OSError):  # it is dead; `receive` raises
            self.channel.send(b"", dumps(value))

    def receive(self, watch: Callable[[], None] = lambda: None) -> Any:
        """Wait for the result, with `watch` called every `TICK` seconds; a `Report` may come before it.

        Raises:
            WorkerLostError: see `check`.
            RLTrainerError: the call raised; its exception as one of ours.
        """
        kind, data = self._receive_message(watch)
        if data is None:
            return None
        value = loads(data)
        if kind == FAILED:
            error_class = getattr(errors, value.type_name, EnvError) if value.is_ours else EnvError
            shows_trace = value.traceback and error_class is EnvError
            trace = f"\n\nIn the worker process:\n{value.traceback}" if shows_trace else ""
            raise error_class(self._failure_text(value) + trace)
        return Report(value) if kind == REPORT else value

    def _receive_message(self, watch: Callable[[], None]) -> tuple[bytes, bytes | None]:
        while not self.channel.wait():
            self.check()
            watch()
        self._is_incomplete = True
        try:
            kind = self.channel.receive_kind()
            if not kind:
                raise EOFError
            data = None if kind == DONE else self.channel.receive_data()
        except (EOFError, OSError):
            if self._is_connected():
                raise  # the user's own, from the handler of a signal
            raise WorkerLostError(self._death_text()) from None
        self._is_incomplete, self._has_answered, self.is_busy = False, True, kind == REPORT
        return kind, data

    def check(self) -> None:
        """Raise a `WorkerLostError` if a process that has not answered is dead, or makes no progress."""
        if not self.process.is_alive():
            raise WorkerLostError(self._death_text())
        pulse = int(self.pulse[0])
        if self._timeout is None or pulse == STARTING or self.channel.has_input():
            return  # it has no limit now, or its answer is here
        now = time.monotonic()
        if pulse != self._seen:
            self._seen, self._since = pulse, now
        elif now - self._since >= self._timeout:
            limit = f"step_timeout={self._timeout:g} seconds"
            raise WorkerLostError(f"{self.who(pulse)} hung: {self.when} took longer than {limit}")

    def who(self, pulse: int = IDLE) -> str:
        """Name the process, or what in it the pulse is of."""
        return f"{self.name} (pid {self.process.pid})"

    def end(self, step: int) -> None:
        """Close the connection, at step 0, which ends the program after its call; send signals at later steps."""
        if step == 0:
            self.channel.shut_down()
        if self.process.exitcode is None and (step or self.ends_by_signal):
            (self.process.terminate if step < 2 else self.process.kill)()

    def finish(self) -> None:
        """Wait until a process that has nothing more to do has ended."""
        self.channel.shut_down()
        self.process.join()
        self.close()

    def close(self) -> None:
        """Free the parent's side."""
        self.channel.close()
        if self.process.exitcode is not None:
            self.process.close()

    def _send(self, when: str, kind: bytes, data: bytes | None, file: int | None) -> None:
        if self._is_incomplete:
            raise WorkerLostError(f"{self.who()}: an interrupt cut the last message to or from it")
        # An interrupt kept the parent from reading the last answer, which would be taken for this call's.
        if self.is_busy:
            try:
                self.receive()
            except RLTrainerError as error:
                if isinstance(error, WorkerLostError):
                    raise
        self.when, self.is_busy, self._is_incomplete = when, True, True
        self._seen, self._since = None, time.monotonic()
        try:
            self.channel.send(kind, data, file)
        except OSError:
            if self._is_connected():
                raise  # the user's own, from the handler of a signal
        self._is_incomplete = False

    def _is_connected(self) -> bool:
        return self.channel.is_open() and bool(self.process.is_alive())

    def _death_text(self) -> str:
        how = self._how_it_died()
        hint = self.start_hint if not self._has_answered and how.startswith("exited") else ""
        return f"{self.who()} {how} during {self.when}{hint}"

    def _how_it_died(self) -> str:
        self.process.join(1.0)
        code = self.process.exitcode
        if code is None:
            return "closed the connection to the parent"
        if code < 0:
            is_named = -code in list(signal.Signals)  # real-time signals have no names
            return f"was killed by {signal.Signals(-code).name if is_named else f'signal {-code}'}"
        return f"exited with code {code}"

    def _start_text(self, error: Exception) -> str:
        return f"{self.name}: its process cannot be started: {type(error).__name__}: {error}"

    def _failure_text(self, failure: Failure) -> str:
        text = failure.message if failure.is_ours else f"{failure.type_name}: {failure.message}"
        return f"{self.who()}, during {self.when}: {text}"


def end_workers(workers: list[Any], owner: int, grace: float = GRACE) -> None:
    """End processes and empty the list, in at most two seconds more than `grace`; never raises."""
    # An interrupt ends them at once, and reaches the caller.
    if os.getpid() != owner:  # a fork of the process that started them holds copies of these objects
        return
    ending, workers[:] = list(workers), []
    # At first the connections are closed, which ends a program after its call; then come SIGTERM, and SIGKILL. All
    # workers share each wait, so that many of them take no longer than one.
    try:
        for step, seconds in enumerate((grace, 0.8, 0.8)):
            for worker in ending:
                worker.end(step)
            deadline = time.monotonic() + seconds
            for worker in ending:
                worker.process.join(max(0.0, deadline - time.monotonic()))
        for worker in ending:
            worker.close()
    except BaseException as error:
        for worker in ending:
            with contextlib.suppress(Exception):
                worker.process.kill()
                worker.close()
        if not isinstance(error, Exception):
            raise
        logging.getLogger("rltrainer").warning("ending the worker processes failed: %r", error)


W = TypeVar("W", bound=Worker)


class WorkerGroup(Generic[W]):
    """Workers that end together: with `end`, when the group is collected, and with the interpreter."""

    # Errors name their `owner`. `tick` are the seconds between two checks for lost workers.

    end_all: ClassVar[Callable[..., None]] = staticmethod(end_workers)

    def __init__(self, owner: str) -> None:
        self.workers: list[W] = []  # empty after the end
        self._owner, self._pid = owner, os.getpid()
        self._looked, self.tick = 0.0, TICK
        # The list is emptied, never replaced: the finalizer holds it, and must not hold the group.
        weakref.finalize(self, self.end_all, self.workers, self._pid)

    @property
    def alive(self) -> list[W]:
        """The workers; raises an `EnvError` after their end."""
        if not self.workers:
            raise EnvError(f"{self._owner}: its workers have ended, by close or by a failure; make a new one")
        return self.workers

    def call_all(self, when: str, name: str, *arguments: Any, file: int | None = None) -> list[Any]:
        """Call a method of all workers at the same time; return the results."""
        return self.call_each(when, name, [arguments] * len(self.alive), file)

    def call_each(
        self, when: str, name: str, arguments: Sequence[tuple[Any, ...]], file: int | None = None
    ) -> list[Any]:
        """Call a method of all workers at the same time, each with its own arguments; return the results."""
        with self.ended_by_a_loss():
            for worker, values in zip(self.alive, arguments, strict=True):
                worker.call(when, name, *values, file=file)
        return self.gather(self.workers)

    def gather(self, workers: Sequence[W], lost: Callable[[W, EnvError], Any] | None = None) -> list[Any]:
        """Wait for the results of busy workers, one after the other; raise their first error."""
        # Without `lost` the first error is raised: of a lost worker at once, and then all workers end; of a call once
        # all have answered. `lost` is called with each worker and its `EnvError` instead, and returns a result for it.
        # If workers are restarted, each one's turn comes; else a death must not wait for a slower worker's answer.
        watch = partial(check_busy, workers) if lost is None else lambda: None
        results: list[Any] = []
        failures: list[RLTrainerError] = []
        with self.ended_by_a_loss():
            for worker in workers:
                try:
                    results.append(worker.receive(watch))
                except RLTrainerError as error:
                    if lost is not None and isinstance(error, EnvError):
                        results.append(lost(worker, error))
                    elif isinstance(error, WorkerLostError):
                        raise
                    else:
                        failures.append(error)
        if failures:
            raise failures[0]
        return results

    def ready(self, workers: Sequence[W], timeout: float | None) -> list[W]:
        """Return the busy workers among these that have answered or are lost; if there are none, wait for the first."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            lost: list[W] = []
            if time.monotonic() - self._looked >= self.tick:
                self._looked = time.monotonic()
                for worker in workers:
                    try:
                        worker.check()
                    except WorkerLostError:
                        lost.append(worker)
            left = 0.0 if lost else max(min(until - time.monotonic(), self.tick), 0.0)
            found = wait_for([worker.channel for worker in workers], left)
            if found or lost or time.monotonic() >= until:
                return [worker for worker in workers if worker.channel.fileno() in found or worker in lost]

    @contextlib.contextmanager
    def ended_by_a_loss(self) -> Iterator[None]:
        """End all workers if one is lost inside."""
        try:
            yield
        except WorkerLostError:
            self.end(grace=0.5)
            raise

    def end(self, grace: float = GRACE) -> None:
        """End all workers; see `end_workers`."""
        self.end_all(self.workers, self._pid, grace)


def check_busy(workers: Sequence[Worker]) -> None:
    """Raise a `WorkerLostError` if one of the busy workers is lost."""
    for worker in workers:
        if worker.is_busy:
            worker.check()
