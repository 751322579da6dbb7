"""The worker processes of an `AsyncCollector`, and the rows that have come from each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rltrainer.collect.async_rows import RowQueue, Rows, as_numpys_own
from rltrainer.collect.async_worker import HERE, OWNER, CollectingProgram, Request
from rltrainer.collect.shared_weights import SharedWeights
from rltrainer.errors import EnvError, ParamsError, RLTrainerError, SpaceError, field_error_text
from rltrainer.processes.channel import dumps
from rltrainer.processes.worker import START_HINT, Worker, WorkerGroup, WorkerLostError, check_busy, make_context
from rltrainer.seeding import derive_seed

MAX_CHUNK = 16
"""Rows that a worker collects at most before it sends them and looks for new weights."""


class CollectingWorker(Worker):
    """A process that collects; `queue` holds its rows that are not taken yet."""

    start_hint = START_HINT

    def __init__(self, context: Any, make_envs: bytes, number: int, seed: int, timeout: float | None) -> None:
        self.number, self.queue, self.num_env_restarts = number, RowQueue(), 0
        super().__init__(context, f"worker {number}", CollectingProgram, (make_envs, number, seed), timeout)

    def ask(self, request: Request) -> None:
        """Let it collect; `answer` waits for the rows."""
        what = f"{request.num_episodes} episodes" if request.num_rows is None else f"{request.num_rows} rows"
        self.call(f"the collection of {what}", "collect", request)

    def answer(self, watch: Callable[[], None] = lambda: None) -> Rows | None:
        """Wait for the rows it was asked for; None if an interrupt left it with something else to answer."""
        result = self.receive(watch)
        return self.rows_of(result) if isinstance(result, tuple) and isinstance(result[0], Rows) else None

    def rows_of(self, result: tuple[Rows, int]) -> Rows:
        """Return the rows of a result of `CollectingProgram.collect`."""
        rows, self.num_env_restarts = result
        if rows.arrays is not None:
            rows.arrays = as_numpys_own(rows.arrays)
        return rows


class CollectingTeam(WorkerGroup[CollectingWorker]):
    """Worker processes that collect, each in envs of its own.

    Args:
        make_envs: makes the vector env of a worker.
        timeout: seconds that one step or reset of envs may take; None for any time.
        seed: the root of the seeds of the workers' global generators.

    Attributes:
        spaces: of observations and actions of one env.
        num_envs, frame_skip: of one worker's envs.
    """

    def __init__(
        self, make_envs: Callable[[], Any], num_workers: int, start_method: str | None, timeout: float | None, seed: int
    ) -> None:
        super().__init__(OWNER)
        context, pickled = make_context(start_method, OWNER), dumped("make_envs", make_envs)
        try:
            for number in range(num_workers):
                worker_seed = derive_seed(seed, "worker", number)
                self.workers.append(CollectingWorker(context, pickled, number, worker_seed, timeout))
            made = self.call_all("the making of the envs", "make")
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

    def begin(
        self, policy: bytes, weights: SharedWeights, before_asking: Callable[[], None], info_keys: Sequence[str] = ()
    ) -> None:
        """Give all workers their policy, pickled, and the memory that its weights come through.

        `before_asking` is called before a worker is asked for rows: then it takes weights.
        """
        self._before_asking = before_asking
        self.call_all("its start", "begin", policy, weights.layout, info_keys, file=weights.file)

    def collect(self, request: Request, stores: bool) -> list[Rows]:
        """Let all workers collect at the same time, and wait for them; episodes are shared among all envs."""
        workers, n = self.alive, self.num_envs
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
        results = self.gather([worker for worker, _ in asked])
        return [worker.rows_of(result) for (worker, _), result in zip(asked, results, strict=True)]

    def take(self, request: Request, ahead: int) -> list[Rows]:
        """Take so many rows from all workers, which continue meanwhile and afterwards, up to `ahead` rows."""
        num_rows = request.num_rows or 0
        with self.ended_by_a_loss():
            self._ask(request, num_rows, ahead)
            self._receive(0.0)
            while any(worker.queue.num_rows < num_rows for worker in self.workers):
                self._ask(request, num_rows, ahead)
                self._receive(None)
            rows = [worker.queue.take(num_rows) for worker in self.workers]
            self._ask(request, 0, ahead)
        return rows

    def _ask(self, request: Request, num_rows: int, ahead: int) -> None:
        """Let idle workers collect what is missing of so many rows, and what they may be ahead."""
        for worker in self.alive:
            if not worker.is_busy:
                missing = num_rows - worker.queue.num_rows
                size = min((ahead + 1) // 2, MAX_CHUNK) if ahead else missing
                if 0 < size <= missing + ahead:
                    self._before_asking()
                    worker.ask(replace(request, num_rows=size))

    def _receive(self, timeout: float | None) -> None:
        """Put the rows of all that have answered into their queues; where none has, wait for the first."""
        for worker in self.ready([worker for worker in self.workers if worker.is_busy], timeout):
            if (rows := worker.answer()) is not None:
                worker.queue.put(rows)

    def settle(self, keeps: bool) -> bool:
        """Wait for rows that were asked for; keep all rows, or drop them. Return whether any were dropped."""
        drops, watch = False, partial(check_busy, self.workers)
        for worker in self.alive:
            if worker.is_busy:
                try:
                    with self.ended_by_a_loss():
                        rows = worker.answer(watch)
                    if rows is not None:
                        worker.queue.put(rows)
                except WorkerLostError:
                    raise
                except RLTrainerError:
                    if keeps:
                        raise
                    drops = True
            if not keeps:
                drops |= worker.queue.num_rows > 0
                worker.queue.clear()
        return drops


class TeamWriter:
    """Lets all workers of a team write the episodes that they have recorded, once they have ended their calls."""

    def __init__(self, team: CollectingTeam) -> None:
        self._team = team

    def flush(self) -> None:
        """Write them, also of rows that are not collected yet."""
        self._write(is_last=False)

    def close(self) -> None:
        """Write them, and record no more."""
        self._write(is_last=True)

    def _write(self, is_last: bool) -> None:
        self._team.settle(keeps=True)
        self._team.call_all("the writing of its episodes", "write_episodes", is_last)


def dumped(field: str, value: Any) -> bytes:
    """Return a value as the bytes that travel to the workers, or raise a `ParamsError` that names the field."""
    try:
        return dumps(value)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        hint = "Define its functions and classes at the top level of a module."
        raise ParamsError(f"{OWNER}.{field}: must be able to travel to worker processes ({why}). {hint}") from error
