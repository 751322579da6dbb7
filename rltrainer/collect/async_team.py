"""The worker processes of an `AsyncCollector` as one: started, told things, waited for, ended."""

import contextlib
import os
import select
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

from rltrainer import errors
from rltrainer.collect.async_rows import RowQueue, Rows, as_numpys_own
from rltrainer.collect.async_worker import HERE, OWNER, Answer, CollectingServer, Request, Ways
from rltrainer.collect.shared_weights import SharedWeights
from rltrainer.envs.workers.by_value import dumps
from rltrainer.envs.workers.child import GRACE, START_HINT, TICK, Child, WorkerLostError, check_busy, end_workers
from rltrainer.envs.workers.start_methods import make_context
from rltrainer.envs.workers.worker_envs import CALL, Failure
from rltrainer.errors import EnvError, ParamsError, RLTrainerError, SpaceError, field_error_text
from rltrainer.seeding import derive_seed

Watch = Callable[[], None]


class CollectingProcess(Child):
    """A process that collects, and the rows that have come from there.

    Args:
        context: how it starts.
        make_envs: makes its vector env, pickled.
        number: which worker it is.
        seed: of the global generators there.
        timeout: seconds that one step or reset of its envs may take; None for any time.

    Attributes:
        queue: rows that came and are not collected yet.
        num_env_restarts: envs that failed there and were restarted.
    """

    def __init__(self, context: BaseContext, make_envs: bytes, number: int, seed: int, timeout: float | None) -> None:
        self.number, self.queue = number, RowQueue()
        self.num_env_restarts = 0
        self.weights: SharedWeights | None = None
        super().__init__(context, CollectingServer, (make_envs, number, seed), timeout, stays_awake=False)

    def order(self, when: str, name: str, *arguments: Any, file: int | None = None) -> None:
        """Tell it to do something; `result` waits until it is done."""
        self.send(when, CALL, name, *arguments, file=file)

    def result(self, watch: Watch) -> Any:
        """Wait for what the last order led to, with `watch` called meanwhile; see `Child.receive`.

        Raises:
            WorkerLostError: the process is dead or hangs.
            RLTrainerError: what was raised there, as one of our errors.
        """
        result, failures = self.receive(watch)
        for failure in failures:
            raise self._error_of(failure)
        return result

    def ask(self, request: Request) -> None:
        """Let it collect; `answer` waits for the rows."""
        what = f"{request.num_episodes} episodes" if request.num_rows is None else f"{request.num_rows} rows"
        self.order(f"the collection of {what}", "collect", request)

    def answer(self, watch: Watch) -> Rows | None:
        """Wait for the rows it was asked for; None if an interrupt left it with something else to answer."""
        answer = self.result(watch)
        if not isinstance(answer, Answer):
            return None
        self.num_env_restarts = answer.num_env_restarts
        if answer.rows.arrays is not None:
            answer.rows.arrays = as_numpys_own(answer.rows.arrays)
        return answer.rows

    def _who(self, pulse: int | None = None) -> str:
        return f"worker {self.number} (pid {self._process.pid})"

    def _death_text(self) -> str:
        how, is_import = self._how_it_died()
        return f"{self._who()} {how} during {self.when}{START_HINT if self.weights is None and is_import else ''}"

    def _start_text(self, error: Exception) -> str:
        return f"worker {self.number}: its process cannot be started: {type(error).__name__}: {error}"

    def _error_of(self, failure: Failure) -> RLTrainerError:
        """Return the exception for a failure there."""
        kind: type[RLTrainerError] = getattr(errors, failure.type_name, EnvError) if failure.is_ours else EnvError
        text = failure.message if failure.is_ours else f"{failure.type_name}: {failure.message}"
        trace = f"\n\nIn the worker process:\n{failure.traceback}" if kind is EnvError and failure.traceback else ""
        return kind(f"{self._who()}, during {self.when}: {text}{trace}")


MAX_CHUNK = 16
"""Rows that a worker collects at most before it sends them and looks for new weights."""


class CollectingTeam:
    """Worker processes that collect, each in envs of its own.

    They end with `end`, when nobody holds the team any more, with the interpreter, and when one of them is lost.

    Args:
        make_envs: makes the vector env of a worker.
        num_workers: W.
        start_method: of the processes; None takes forkserver where there is one.
        timeout: see `CollectingProcess`.
        seed: from which the seeds of their global generators derive.

    Attributes:
        workers: empty after the end.
        spaces: of observations and actions of one env.
        num_envs: of one worker.
        frame_skip: see `rltrainer.frame_skip`.

    Raises:
        EnvError: a process cannot be started, or `make_envs` cannot travel or raises.
        SpaceError: the envs of two workers have different spaces.
    """

    def __init__(
        self, make_envs: Callable[[], Any], num_workers: int, start_method: str | None, timeout: float | None, seed: int
    ) -> None:
        context, pickled = make_context(start_method, OWNER), dumped("make_envs", make_envs)
        self.workers: list[CollectingProcess] = []
        self._owner = os.getpid()
        weakref.finalize(self, end_workers, self.workers, self._owner)
        try:
            for number in range(num_workers):
                worker_seed = derive_seed(seed, "worker", number)
                self.workers.append(CollectingProcess(context, pickled, number, worker_seed, timeout))
            made = self.tell_all("the making of the envs", "make")
            *first, code = made[0]
            for number, (*other, _) in enumerate(made):
                if other != first:
                    raise SpaceError(f"{OWNER}.make_envs: worker {number} has {other}, worker 0 has {first}")
            self.spaces, self.num_envs, self.frame_skip = first
            if code != HERE:
                raise EnvError(f"the workers imported {code}, not {HERE}: use start_method='spawn'")
        except BaseException:
            self.end(grace=0.5)
            raise
        self._poll = select.poll()
        for worker in self.workers:
            self._poll.register(worker.signals, select.POLLIN)
        self._by_file = {worker.signals.fileno(): worker for worker in self.workers}

    def begin(
        self, policy: bytes, weights: SharedWeights, before_asking: Callable[[], None], info_keys: Sequence[str] = ()
    ) -> None:
        """Give all workers their policy, and the memory that its weights come through.

        Args:
            policy: pickled.
            weights: what the workers take before they collect.
            before_asking: is called before a worker is asked for rows: then it takes weights.
            info_keys: what the workers' collectors read of the infos.
        """
        self._before_asking = before_asking
        for worker in self._alive():
            worker.order("its start", "begin", policy, weights.layout, info_keys, file=weights.file)
        self._gather()
        for worker in self.workers:
            worker.weights = weights

    def set_ways(self, ways: Ways, modules: Sequence[str]) -> None:
        """Let all workers act and keep so."""
        dumped("exploration", (ways.exploration, ways.of_policy))
        self.tell_all("its settings", "set_ways", ways, modules)

    def tell_all(self, when: str, name: str, *arguments: Any) -> list[Any]:
        """Let all workers do the same at the same time; return the results."""
        return self.tell_each(when, name, [arguments] * len(self._alive()))

    def tell_each(self, when: str, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Let all workers do the same, each with its own arguments; return the results."""
        with self._ended_by_a_loss():
            for worker, values in zip(self._alive(), arguments, strict=True):
                worker.order(when, name, *values)
        return self._gather()

    def collect(self, request: Request, stores: bool) -> list[Rows]:
        """Let all workers collect at the same time, and wait for them; episodes are shared among all envs.

        Raises:
            ParamsError: there are fewer episodes than workers, and the cells are to be stored.
        """
        workers, n = self._alive(), self.num_envs
        requests = [request] * len(workers)
        if request.num_episodes is not None:
            share, rest = divmod(request.num_episodes, n * len(workers))
            quotas = [n * share + min(max(rest - n * worker.number, 0), n) for worker in workers]
            if stores and not all(quotas):
                rule = f"must give each of {len(workers)} workers an episode"
                raise ParamsError(field_error_text(f"{OWNER}.collect", "num_episodes", rule, request.num_episodes))
            requests = [replace(request, num_episodes=quota) for quota in quotas]
        asked = [(w, each) for w, each in zip(workers, requests, strict=True) if each.num_episodes != 0]
        self._before_asking()
        for worker, each in asked:
            worker.ask(each)
        return self._each(CollectingProcess.answer, [worker for worker, _ in asked])

    def take(self, request: Request, ahead: int) -> list[Rows]:
        """Take so many rows from all workers, which go on meanwhile and afterwards up to `ahead` rows.

        Raises:
            EnvError: a worker was lost; what else is raised in one is raised here, too.
        """
        num_rows = request.num_rows or 0
        with self._ended_by_a_loss():
            self._ask(request, num_rows, ahead)
            self._receive(waits=False)
            while any(worker.queue.num_rows < num_rows for worker in self.workers):
                self._ask(request, num_rows, ahead)
                self._receive(waits=True)
            rows = [worker.queue.take(num_rows) for worker in self.workers]
            self._ask(request, 0, ahead)
        return rows

    def _ask(self, request: Request, num_rows: int, ahead: int) -> None:
        """Let idle workers collect what is missing of so many rows, and what they may be ahead."""
        for worker in self._alive():
            if not worker.is_busy:
                missing = num_rows - worker.queue.num_rows
                size = min((ahead + 1) // 2, MAX_CHUNK) if ahead else missing
                if 0 < size <= missing + ahead:
                    self._before_asking()
                    worker.ask(replace(request, num_rows=size))

    def _receive(self, waits: bool) -> None:
        """Put the rows of all that have answered into their queues; wait until there is one, if asked to."""
        watch = partial(check_busy, self.workers)
        while True:
            ready = [self._by_file[file] for file, _ in self._poll.poll(int(TICK * 1000) if waits else 0)]
            for worker in ready:
                if (rows := worker.answer(watch)) is not None:
                    worker.queue.put(rows)
            if ready or not waits:
                return
            watch()

    def settle(self, keeps: bool) -> bool:
        """Wait for rows that were asked for; keep them in the queues, or forget all that is there.

        Returns:
            whether something was forgotten.
        """
        forgets, watch = False, partial(check_busy, self.workers)
        for worker in self._alive():
            if worker.is_busy:
                try:
                    with self._ended_by_a_loss():
                        rows = worker.answer(watch)
                    if rows is not None:
                        worker.queue.put(rows)
                except WorkerLostError:
                    raise
                except RLTrainerError:
                    if keeps:
                        raise
                    forgets = True
            if not keeps:
                forgets |= worker.queue.num_rows > 0
                worker.queue.clear()
        return forgets

    def end(self, grace: float = GRACE) -> None:
        """End all workers; never raises."""
        end_workers(self.workers, self._owner, grace)

    def _alive(self) -> list[CollectingProcess]:
        if not self.workers:
            raise EnvError(f"{OWNER}: its workers have ended, by close or by a failure; make a new one")
        return self.workers

    def _gather(self) -> list[Any]:
        return self._each(CollectingProcess.result, self.workers)

    def _each(self, answer: Callable[[CollectingProcess, Watch], Any], workers: list[CollectingProcess]) -> list[Any]:
        """Wait for the answers of all of these, even if one raises; then raise the first error."""
        results, first, watch = [], None, partial(check_busy, workers)
        with self._ended_by_a_loss():
            for worker in workers:
                try:
                    results.append(answer(worker, watch))
                except WorkerLostError:
                    raise
                except RLTrainerError as error:
                    first = first or error
        if first is not None:
            raise first
        return results

    @contextlib.contextmanager
    def _ended_by_a_loss(self) -> Iterator[None]:
        """End all workers if one is lost inside."""
        try:
            yield
        except WorkerLostError:
            self.end(grace=0.5)
            raise


class TeamWriter:
    """Lets all workers of a team write the episodes that they have recorded."""

    def __init__(self, team: CollectingTeam) -> None:
        self._team = team

    def flush(self) -> None:
        """Write them, once the workers have done what they are at, and what they are ahead of the data too."""
        self._team.settle(keeps=True)
        self._team.tell_all("the writing of its episodes", "write_episodes", False)

    def close(self) -> None:
        """Write them, and record no more."""
        self._team.settle(keeps=True)
        self._team.tell_all("the writing of its episodes", "write_episodes", True)


def dumped(field: str, value: Any) -> bytes:
    """Return what travels to the workers.

    Raises:
        ParamsError: it cannot; the text names the field.
    """
    try:
        return dumps(value)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        hint = "Define its functions and classes at the top level of a module."
        raise ParamsError(f"{OWNER}.{field}: must be able to travel to worker processes ({why}). {hint}") from error
