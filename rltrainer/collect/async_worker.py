"""The workers of an `AsyncCollector`: the program of each, a collector of its own, and the team of them."""

import operator
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
from torch import nn

from rltrainer import seeding
from rltrainer.collect.async_rows import Arrays, RowQueue, Rows, as_numpys_own, to_arrays
from rltrainer.collect.collector import Collector
from rltrainer.collect.shared_weights import Layout, SharedWeights, check_layout, layout_of, tensors_of
from rltrainer.data import RolloutBuffer
from rltrainer.data.storage import Extra
from rltrainer.envs import frame_skip
from rltrainer.envs.deferred_envs import opened
from rltrainer.envs.vector_env import close_envs
from rltrainer.errors import EnvError, ParamsError, RLTrainerError, SpaceError
from rltrainer.nets import Policy
from rltrainer.processes.program import Link
from rltrainer.processes.worker import START_HINT, Worker, WorkerGroup, WorkerLostError, check_busy
from rltrainer.types import Load, State

HERE = os.path.realpath(__file__)
# Rows that a worker collects at most before it sends them and looks for new weights.
MAX_CHUNK = 16


@dataclass(frozen=True, slots=True)
class Request:
    """A collection: so many rows of all envs, or so many episodes."""

    num_rows: int | None
    num_episodes: int | None
    random: bool
    explore: bool


class CollectingProgram:
    """Collects in the envs of one worker; the pulse counts their steps and resets.

    `make_envs`, pickled, makes the vector env; `seed` seeds all global generators of the process.
    """

    def __init__(self, link: Link, owner: str, make_envs: bytes, number: int | str, seed: int) -> None:
        self._link, self.owner, self._make_envs, self._number, self._seed = link, owner, make_envs, number, seed
        self._envs: gym.vector.VectorEnv[Any, Any, Any] | None = None
        self.load_state: Load = lambda: None  # of the state that was checked last
        self._progress = 0.0

    def close(self) -> None:
        """Close the envs; never raises."""
        if self._envs is not None:
            close_envs(self._envs)

    def make(self) -> tuple[Any, ...]:
        """Make the envs, else a `ParamsError`; return their spaces, number and frame skip, and this code's place."""
        seeding.seed(self._seed)
        envs = self._link.load(self._make_envs)()
        if not isinstance(envs, gym.vector.VectorEnv):
            hint = "Pass functools.partial(rl.make_vec, env_id, num_envs=1)."
            raise ParamsError.about(self.owner, "make_envs", "must return a gymnasium VectorEnv", envs, hint)
        self._envs = envs = opened(envs)
        return (envs.single_observation_space, envs.single_action_space), envs.num_envs, frame_skip(envs), HERE

    def receive_weights(self, layout: Layout) -> Any:
        """Return the weights, in the memory that comes with this call."""
        return SharedWeights(layout, self._link.receive_file())

    def begin(self, policy: bytes, layout: Layout, info_keys: Sequence[str]) -> None:
        """Make the collector, with a copy of the policy that takes the weights of this layout."""
        self._weights = self.receive_weights(layout)
        assert self._envs is not None, "the first call makes the envs"
        self._policy: Policy = self._link.load(policy)
        self._policy.progress = lambda: self._progress
        self._collector = Collector(self._policy, _Pulsing(self._envs, self._link.pulse), info_keys=info_keys)
        self._collector.adapter.branch_seed("worker", self._number)

    def configure(
        self, explorations: bytes, columns: Extra | None, keeps_env_action: bool, modules: Sequence[str]
    ) -> None:
        """Explore and store as the learner's collector does.

        Args:
            explorations: pickled, the one that replaces the policy's own, and the policy's own.
            columns: of the buffer; None where nothing is stored.
            keeps_env_action: store the actions that the envs received, not the sampled ones.
            modules: paths from the collector to the modules that weights come for; a `ParamsError` if one has none.
        """
        collector = self._collector
        collector.exploration, self._policy.exploration = self._link.load(explorations)
        if columns is None:
            collector.buffer = collector.rollout_buffer = None
        elif collector.buffer is None or dict(collector.buffer.extra) != dict(columns):
            spaces = (self._policy.observation_space, self._policy.action_space)
            collector.attach_buffer(RolloutBuffer(16, collector.num_envs, *spaces, extra=columns))
        collector.keeps_env_action = keeps_env_action
        found = {}
        for path in modules:
            try:
                found[path] = module = operator.attrgetter(path)(collector)
            except AttributeError as error:
                raise ParamsError(f"{self.owner}.modules[{path!r}]: a worker's collector has none ({error})") from error
            if not isinstance(module, nn.Module):
                raise ParamsError.about(self.owner, f"modules[{path!r}]", "must be a module in the workers too", module)
        targets = tensors_of(found)
        check_layout(self._weights.layout, layout_of(targets), f"{self.owner}.modules")
        self._targets, self._serial = [tensor for _, tensor in targets], 0

    def collect(self, request: Request) -> Rows:
        """Collect rows [T, n] with the newest weights."""
        collector, policy = self._collector, self._policy
        # A serial, not the version: a loaded run publishes other weights as the same version.
        if self._weights.serial != self._serial:
            self._serial, policy.version, self._progress = self._weights.take(self._targets)
        num_steps = None if request.num_rows is None else request.num_rows * collector.num_envs
        stats = collector.collect(num_steps, request.num_episodes, request.random, request.explore)
        arrays = {} if collector.buffer is None else to_arrays(collector.rollout())
        return Rows(arrays, stats, policy.version, collector.num_env_restarts)

    def collect_random(self, num_rows: int) -> Arrays:
        """Collect random actions, which are not counted; see `Collector.collect_random`."""
        return to_arrays(self._collector.collect_random(num_rows))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the collector."""
        return getattr(self._collector, name)(*arguments)

    def record_episodes(self, folder: str, first_env: int) -> None:
        """Record the episodes of the envs; their indices start with `first_env`."""
        self._writer = self._collector.adapter.record_episodes(folder, first_env)

    def write_episodes(self, is_last: bool) -> None:
        """Write what was recorded, and record no more if that was all."""
        self._writer.close() if is_last else self._writer.flush()

    def check_state(self, state: State) -> list[str]:
        """Check a state, which `load_state` loads; return the warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.load_state = self._collector.prepare_load(state)
        return [str(each.message) for each in caught]


class _Pulsing(gym.vector.VectorWrapper):
    """Counts steps and resets where the parent sees them."""

    is_stateless = supports_masked_reset = True

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], pulse: Any) -> None:
        super().__init__(envs)
        self._pulse = pulse

    def step(self, actions: Any) -> Any:
        result = self.env.step(actions)
        self._pulse[0] += 1
        return result

    def reset(self, **options: Any) -> Any:
        result = self.env.reset(**options)
        self._pulse[0] += 1
        return result


class CollectingWorker(Worker):
    """A process that collects; `queue` holds its rows that are not taken yet."""

    start_hint = START_HINT
    num_lost_envs = 0  # of lost workers in its place

    def __init__(
        self, context: Any, owner: str, make_envs: bytes, timeout: float | None, number: int, seed: int
    ) -> None:
        self.number, self.queue, self.num_env_restarts = number, RowQueue(), 0
        super().__init__(context, f"worker {number}", CollectingProgram, (owner, make_envs, number, seed), timeout)

    @property
    def num_asked_rows(self) -> int | None:
        """Rows on their way; None if it cannot be asked for more."""
        return None if self.is_busy else 0

    def ask(self, request: Request) -> None:
        """Let it collect; `receive` waits for the rows."""
        what = f"{request.num_episodes} episodes" if request.num_rows is None else f"{request.num_rows} rows"
        self.call(f"the collection of {what}", "collect", request)

    def receive(self, watch: Callable[[], None] = lambda: None) -> Any:
        """Wait for the result; see `Worker.receive`."""
        result = super().receive(watch)
        if isinstance(result, Rows):
            self.num_env_restarts = self.num_lost_envs + result.num_env_restarts
            result.arrays = as_numpys_own(result.arrays)
        return result

    def enqueue(self, watch: Callable[[], None] = lambda: None) -> None:
        """Wait for the rows that it was asked for, and queue them."""
        rows = self.receive(watch)
        if isinstance(rows, Rows) and rows.arrays:  # an interrupt may have left it with something else to answer
            self.queue.put(rows)


class CollectingTeam(WorkerGroup[CollectingWorker]):
    """Workers that collect, each in envs of its own: alike, else a `SpaceError`; with this code, else an `EnvError`.

    Args:
        start: starts a worker, given its number and its seed.
        before_asking: called before a worker is asked for rows; the worker takes weights for them.

    Attributes:
        spaces: of observations and actions of one env.
        num_envs, frame_skip: of one worker's envs.
        num_refused: env steps that were dropped, as their weights were too old.
    """

    here: ClassVar[str | None] = HERE  # where workers must find this code; None for anywhere

    def __init__(
        self, owner: str, start: Callable[[int, int], CollectingWorker], num_workers: int, before_asking: Load
    ) -> None:
        super().__init__(owner)
        self._before_asking, self.num_refused, seed = before_asking, 0, seeding.draw_seed()
        try:
            for number in range(num_workers):
                self.workers.append(start(number, seeding.derive_seed(seed, "worker", number)))
            made = self.call_all("the making of the envs", "make")
            *first, code = made[0]
            for number, (*other, _) in enumerate(made):
                if other != first:
                    raise SpaceError(f"{owner}.make_envs: worker {number} has {other}, worker 0 has {first}")
            self.spaces, self.num_envs, self.frame_skip = first
            if self.here not in (None, code):
                raise EnvError(f"the workers imported {code}, not {HERE}: use start_method='spawn'")
        except BaseException:
            self.end(grace=0.5)
            raise

    def collect(self, request: Request, stores: bool) -> list[Rows]:
        """Let all workers collect rows [T, n] at the same time, and wait for them; episodes are shared among all envs.

        A `ParamsError` if rows are stored and a worker would get no episode.
        """
        workers, n = self.alive, self.num_envs
        requests = [request] * len(workers)
        if request.num_episodes is not None:
            # As one collector of all envs shares them: the first envs have one more where they do not come out even.
            share, rest = divmod(request.num_episodes, n * len(workers))
            quotas = [n * share + min(max(rest - n * worker.number, 0), n) for worker in workers]
            if stores and not all(quotas):
                rule = f"must give each of {len(workers)} workers an episode"
                raise ParamsError.about(f"{self._owner}.collect", "num_episodes", rule, request.num_episodes)
            requests = [replace(request, num_episodes=quota) for quota in quotas]
        asked = [(worker, each) for worker, each in zip(workers, requests, strict=True) if each.num_episodes != 0]
        self._before_asking()
        for worker, each in asked:
            worker.ask(each)
        return self.gather([worker for worker, _ in asked])

    def take(self, request: Request, ahead: int, oldest: float) -> list[Rows]:
        """Take rows [T, n] of versions from `oldest` on from all workers, which continue up to `ahead` rows."""
        num_rows = request.num_rows or 0
        timeout: float | None = 0.0  # what has come already is taken first, and then waited for
        with self.ended_by_a_loss():
            while not self._have(num_rows, oldest) or timeout == 0.0:
                self._ask(request, num_rows, ahead)
                for worker in self.ready([worker for worker in self.workers if worker.is_busy], timeout):
                    worker.enqueue()
                timeout = None
            rows = [worker.queue.take(num_rows) for worker in self.workers]
            self._ask(request, 0, ahead)
        return rows

    def _have(self, num_rows: int, oldest: float) -> bool:
        self.num_refused += self.num_envs * sum(worker.queue.refuse(oldest) for worker in self.workers)
        return all(worker.queue.num_rows >= num_rows for worker in self.workers)

    def _ask(self, request: Request, num_rows: int, ahead: int) -> None:
        """Let workers with room collect what is missing of so many rows, and what they may be ahead."""
        for worker in self.alive:
            while (asked := worker.num_asked_rows) is not None:
                missing = num_rows - worker.queue.num_rows - asked
                size = min((ahead + 1) // 2, MAX_CHUNK) if ahead else missing
                if not 0 < size <= missing + ahead:
                    break
                self._before_asking()
                worker.ask(replace(request, num_rows=size))

    def settle(self, keeps: bool) -> bool:
        """Wait for rows that were asked for; keep all rows, or drop them. Return whether any were dropped."""
        drops, watch = False, partial(check_busy, self.workers)
        for worker in self.alive:
            while worker.is_busy:
                try:
                    with self.ended_by_a_loss():
                        worker.enqueue(watch)
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

    def flush(self, is_last: bool = False) -> None:
        """Write them, also of rows that are not collected yet."""
        self._team.settle(keeps=True)
        self._team.call_all("the writing of its episodes", "write_episodes", is_last)

    def close(self) -> None:
        """Write them, and record no more."""
        self.flush(is_last=True)


def dumped(owner: str, field: str, value: Any, pack: Callable[[Any], bytes]) -> bytes:
    """Return a value as the bytes that travel to the workers, or raise a `ParamsError` that names the field."""
    try:
        return pack(value)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        hint = "Define its functions and classes at the top level of a module."
        raise ParamsError(f"{owner}.{field}: must be able to travel to worker processes ({why}). {hint}") from error
