"""The learner's side of one worker process of an `AsyncCollector`."""

from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

from rltrainer import errors
from rltrainer.collect.async_rows import RowQueue, Rows, as_numpys_own
from rltrainer.collect.async_worker import Answer, CollectingServer, Request
from rltrainer.collect.shared_weights import SharedWeights
from rltrainer.envs.workers.child import START_HINT, Child
from rltrainer.envs.workers.worker_envs import CALL, Failure
from rltrainer.errors import EnvError, RLTrainerError

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
        num_lost_envs: envs that failed there and were restarted.
    """

    def __init__(self, context: BaseContext, make_envs: bytes, number: int, seed: int, timeout: float | None) -> None:
        self.number, self.queue = number, RowQueue()
        self.num_lost_envs = 0
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
        self.num_lost_envs = answer.num_lost_envs
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
        """Return the exception that tells of a failure there."""
        kind: type[RLTrainerError] = getattr(errors, failure.type_name, EnvError) if failure.is_ours else EnvError
        text = failure.message if failure.is_ours else f"{failure.type_name}: {failure.message}"
        trace = f"\n\nIn the worker process:\n{failure.traceback}" if kind is EnvError and failure.traceback else ""
        return kind(f"{self._who()}, during {self.when}: {text}{trace}")
