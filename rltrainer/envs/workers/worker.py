"""The parent's side of one worker process of a vector env."""

from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from typing import Any

from rltrainer.envs.backends.masked_resets import Env
from rltrainer.envs.workers.child import START_HINT, Child
from rltrainer.envs.workers.shared_arrays import SharedArrays
from rltrainer.envs.workers.worker_envs import ATTACH, Failure, StepResult, WorkerEnvs
from rltrainer.envs.workers.worker_infos import Schema


class Worker(Child):
    """A process that steps some of the envs.

    Args:
        context: how the process starts.
        factories: of its envs.
        first: the index of the first of them.
        number: which worker it is.
        step_timeout: seconds that one env may take for one command, its making included; None for any time.
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
        self.number = number
        self.schema: Schema | None = None
        self._is_attached = False
        super().__init__(context, WorkerEnvs, (list(factories), first), step_timeout, stays_awake)

    def attach(self, arrays: SharedArrays) -> None:
        """Let the worker map the shared arrays."""
        self.send("its start", ATTACH, arrays.layout, file=arrays.file)
        self.receive()
        self._is_attached = True

    def receive(self, watch: Callable[[], None] = lambda: None) -> tuple[Any, Sequence[Failure]]:
        """Wait for the answer; see `Child.receive`."""
        result, failures = super().receive(watch)
        if isinstance(result, StepResult):
            self.schema = result.schema
        return result, failures

    def _who(self, pulse: int | None = None) -> str:
        envs = self.envs if pulse is None or pulse < 0 else [pulse]
        return f"env{'s' if len(envs) > 1 else ''} {', '.join(map(str, envs))} (pid {self._process.pid})"

    def _death_text(self) -> str:
        """Say which envs died with the worker, how, and when."""
        how, is_import = self._how_it_died()
        several, current = len(self.envs) > 1, int(self._pulse[0])
        where = f", in env {current}" if several and current >= 0 else ""
        how = how.replace("was killed", "were killed") if several else how
        hint = START_HINT if not self._is_attached and is_import else ""
        return f"{self._who()} {how} during {self.when}{where}{hint}"

    def _start_text(self, error: Exception) -> str:
        text, first = f"{type(error).__name__}: {error}", self.envs.start
        if type(error).__name__ in ("PicklingError", "AttributeError", "TypeError"):
            return (
                f"env {first}: the factory cannot travel to a worker process ({text}). Define it, and its wrappers, as "
                "functions or classes at the top level of a module, or use start_method='fork' or backend='sync'."
            )
        return f"env {first}: its worker process cannot be started: {text}"
