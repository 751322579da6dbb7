"""The worker processes of a vector env: started, asked all at the same time, started anew, ended."""

import contextlib
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from typing import Any, Literal

import numpy as np

from rltrainer import errors
from rltrainer.envs.backends.masked_resets import Env
from rltrainer.envs.checks import failure_text
from rltrainer.envs.workers.child import GRACE, TICK, WorkerLostError, check_busy, end_workers
from rltrainer.envs.workers.shared_arrays import SharedArrays
from rltrainer.envs.workers.start_methods import make_context
from rltrainer.envs.workers.worker import Worker
from rltrainer.envs.workers.worker_envs import DESCRIBE, REMAKE, RESET, STEP, Failure
from rltrainer.errors import EnvError, RLTrainerError
from rltrainer.validation.field_rules import NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class WorkerOptions:
    """Options of worker processes, as `make_vec` takes them."""

    num_workers: PositiveInt | None = None
    start_method: Literal["forkserver", "spawn", "fork"] | None = None
    step_timeout: PositiveFloat | None = None
    on_env_error: Literal["raise", "restart"] = "raise"
    max_restarts: NonNegativeInt = 3


class WorkerPool:
    """Worker processes, each with a slice of N envs.

    They end with `end`, when nobody holds the pool any more, and with the interpreter.

    Args:
        factories: one per env.
        options: how many processes, how they start, and what becomes of envs that fail.

    Attributes:
        workers: empty after the end.
        num_restarts: failures so far that led to a restart.
    """

    def __init__(self, factories: Sequence[Callable[[], Env]], options: WorkerOptions) -> None:
        self.num_restarts, self._options, self._factories = 0, options, list(factories)
        self._context = make_context(options.start_method)
        self._arrays: SharedArrays | None = None
        self.workers: list[Worker] = []
        self._owner, self._looked = os.getpid(), 0.0
        self._tick = TICK if options.step_timeout is None else min(TICK, options.step_timeout / 4)
        weakref.finalize(self, end_workers, self.workers, self._owner)
        try:
            count = min(options.num_workers or _num_cores(), len(factories))
            self._stay_awake = count <= _num_cores()
            for rows in np.array_split(np.arange(len(factories)), count):
                self.workers.append(self._start(len(self.workers), range(rows[0], rows[-1] + 1)))
            self.descriptions = self._order(self.workers, "the making of the envs", DESCRIBE)
        except BaseException:
            self.end(grace=0.5)
            raise

    def attach(self, arrays: SharedArrays) -> None:
        """Let all workers map the shared arrays."""
        self._arrays = arrays
        for worker in self.workers:
            worker.attach(arrays)

    def end(self, grace: float = GRACE) -> None:
        """End all workers; see `end_workers`."""
        end_workers(self.workers, self._owner, grace)

    def ask(
        self, when: str, command: bytes, arguments: list[tuple[Worker, tuple[Any, ...]]]
    ) -> tuple[list[tuple[Worker, Any]], set[int]]:
        """Give workers the same command of `worker_envs`, all at the same time; `when` is for errors: `step 12`.

        Returns:
            the answers, and which envs were made anew: theirs, if their worker died, are missing among the answers.

        Raises:
            EnvError: an env failed, or one more than may be restarted; after a death or time-out all workers end.
        """
        self._require_workers()
        restarts = self._restarts(command)
        # A restart comes when it is the lost worker's turn.
        watch = (lambda: None) if restarts else partial(check_busy, [worker for worker, _ in arguments])

        results = []
        failed: list[Failure] = []
        renewed: set[int] = set()
        with self._ended_by_errors():
            for worker, values in arguments:
                worker.send(when, command, *values)
            for worker, _ in arguments:
                try:
                    result, failures = worker.receive(watch)
                    results.append((worker, result))
                    failed += failures
                except WorkerLostError as error:
                    renewed |= self._replace(worker, error)
            fatal = self._find_fatal(failed, restarts)
            renewed |= set() if fatal else self._remake(failed, when)
        if fatal is not None:
            raise _error_of(fatal, when)
        return results, renewed

    def send(self, number: int, when: str, command: bytes, *arguments: Any) -> None:
        """Give one worker a command, whose answer `poll` hears; `when` is as for `ask`.

        Raises:
            EnvError: the workers have ended.
        """
        self._require_workers()
        self.workers[number].send(when, command, *arguments)

    def poll(self, workers: Sequence[Worker], timeout: float | None) -> list[tuple[Worker, Any, bool]]:
        """Hear those of some busy workers that have answered; where none has, wait for the first.

        Args:
            workers: who is listened to, heard in this order.
            timeout: seconds to wait at most; None waits as long as it takes.

        Returns:
            who has answered, with what, and whether instead its envs were made anew, and have done nothing yet.

        Raises:
            EnvError: as `ask` does.
        """
        self._require_workers()
        until = math.inf if timeout is None else time.monotonic() + timeout
        with self._ended_by_errors():
            ready: set[Any] = set()
            while not ready:
                if answers := self._look_after(workers):
                    return answers
                left = min(until - time.monotonic(), self._tick)
                ready = set(connection.wait([worker.signals for worker in workers], max(left, 0.0)))
                if left <= 0:
                    break
            failed: list[tuple[str, Failure]] = []
            for worker in [worker for worker in workers if worker.signals in ready]:
                try:
                    result, failures = worker.receive()
                except WorkerLostError as error:
                    self._replace(worker, error)
                    answers.append((worker, None, True))
                    continue
                fatal = self._find_fatal(failures, self._restarts(worker.command))
                if fatal is not None:
                    failed.append((worker.when, fatal))
                else:
                    is_new = bool(self._remake(failures, worker.when))
                    answers.append((worker, result, is_new))
        for when, failure in failed:
            raise _error_of(failure, when)
        return answers

    def _look_after(self, workers: Sequence[Worker]) -> list[tuple[Worker, Any, bool]]:
        """Find, once in a while, workers that died or hang; return those that were started anew, as `poll` does."""
        if time.monotonic() - self._looked < self._tick:
            return []
        self._looked = time.monotonic()
        lost: list[tuple[Worker, Any, bool]] = []
        for worker in workers:
            try:
                worker.check()
            except WorkerLostError as error:
                self._replace(worker, error)
                lost.append((worker, None, True))
        return lost

    def _require_workers(self) -> None:
        if not self.workers:
            raise EnvError("WorkerVectorEnv: its workers have ended, by close or by a failed env; make a new one")

    @contextlib.contextmanager
    def _ended_by_errors(self) -> Iterator[None]:
        """End all workers if an error is raised inside."""
        try:
            yield
        except RLTrainerError:
            self.end(grace=0.5)
            raise

    def _restarts(self, command: bytes) -> bool:
        """Return whether an env that fails in this command is made anew."""
        return self._options.on_env_error == "restart" and command in (STEP, RESET)

    def _find_fatal(self, failed: Sequence[Failure], restarts: bool) -> Failure | None:
        return next((failure for failure in failed if failure.is_ours or not restarts), None)

    def _remake(self, failed: Sequence[Failure], when: str) -> set[int]:
        """Make envs that raised anew; return which were made."""
        renewed: set[int] = set()
        for failure in failed:
            if failure.env not in renewed:
                worker = next(worker for worker in self.workers if failure.env in worker.envs)
                renewed |= self._renew(worker, _error_of(failure, when), failure.env)
        return renewed

    def _replace(self, worker: Worker, error: WorkerLostError) -> set[int]:
        """Start a lost worker anew, if that is wanted; return its envs."""
        if not self._restarts(worker.command):
            raise error
        return self._renew(worker, error)

    def _renew(self, worker: Worker, error: RLTrainerError, env: int | None = None) -> set[int]:
        """Make an env anew, or, where its worker is lost too or `env` is None, all those of the worker.

        What fails in that is forgiven like the first failure, while there are restarts left. Returns who was made.
        """
        lost = [worker]
        while True:
            self._forgive(error)
            try:
                if env is not None:
                    self._order([worker], "the making of an env", REMAKE, env)
                    return {env}
                end_workers(lost, self._owner, grace=0.0)
                worker = self.workers[worker.number] = self._start(worker.number, worker.envs)
                lost.append(worker)
                self._order([worker], "the making of the envs", DESCRIBE)
                assert self._arrays is not None, "only an attached worker is asked for what can be done again"
                worker.attach(self._arrays)
                return set(worker.envs)
            except EnvError as another:
                env = None if isinstance(another, WorkerLostError) else env
                error = another

    def _forgive(self, error: RLTrainerError) -> None:
        """Count a failure; raise an `EnvError` if this one is too many."""
        limit = self._options.max_restarts
        if self.num_restarts >= limit:
            raise EnvError(f"{error}\n(after {self.num_restarts} restarts; max_restarts={limit})") from error
        self.num_restarts += 1
        logging.getLogger("rltrainer").warning("restart %d of %d: %s", self.num_restarts, limit, error)

    def _start(self, number: int, envs: range) -> Worker:
        factories = self._factories[envs.start : envs.stop]
        return Worker(self._context, factories, envs.start, number, self._options.step_timeout, self._stay_awake)

    def _order(self, workers: Sequence[Worker], when: str, command: bytes, *arguments: Any) -> list[Any]:
        """Let workers do something that none of their envs may fail in, all at the same time; return the results."""
        for worker in workers:
            worker.send(when, command, *arguments)
        results = []
        for worker in workers:
            result, failures = worker.receive(partial(check_busy, workers))
            for failure in failures:
                raise _error_of(failure, when)
            results.append(result)
        return results


def _num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _error_of(failure: Failure, when: str) -> RLTrainerError:
    """Return the exception for a failure in a worker."""
    trace = f"\n\nIn the worker process:\n{failure.traceback}"
    if not failure.is_ours:
        return EnvError(failure_text(failure.env, when, failure.type_name, failure.message) + trace)
    kind: type[RLTrainerError] = getattr(errors, failure.type_name, EnvError)
    return kind(failure.message + (trace if kind is EnvError and failure.traceback else ""))
