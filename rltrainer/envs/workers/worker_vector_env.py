"""Our vector env of worker processes: its side in the parent, and the program of a worker."""

import itertools
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from rltrainer.envs.backends.masked_resets import NO_TRANSITION, Env, MaskedVectorEnv, StepOutcome, copy_rows
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.envs.checks import check_reward_shape, check_same_spaces, failure_text
from rltrainer.errors import EnvError
from rltrainer.processes.program import IDLE, Failure, Link
from rltrainer.processes.shared_arrays import SharedArrays
from rltrainer.processes.worker import START_HINT, Worker, WorkerGroup, WorkerLostError, make_context, num_cores
from rltrainer.seeding import derive_seed, stream_seed
from rltrainer.seeding import seed as seed_everything
from rltrainer.spaces import leaf_shape, leaf_spaces
from rltrainer.tree import Tree, map_tree
from rltrainer.types import State
from rltrainer.validation.field_rules import NonNegativeInt, PositiveFloat, PositiveInt

HERE = os.path.realpath(__file__)


@dataclass(frozen=True)
class WorkerOptions:
    """Options of worker processes, as `make_vec` takes them, and the global index of the first env."""

    num_workers: PositiveInt | None = None
    start_method: Literal["forkserver", "spawn", "fork"] | None = None
    step_timeout: PositiveFloat | None = None
    on_env_error: Literal["raise", "restart"] = "raise"
    max_restarts: NonNegativeInt = 3
    first_env: NonNegativeInt = 0


class WorkerEnvs:
    """The envs of one worker, the first with index `first`; the pulse is the env that is being called."""

    envs: SyncVectorEnv

    def __init__(self, link: Link, factories: Sequence[Callable[[], Env]], first: int, seed: int) -> None:
        seed_everything(seed)  # for what an env draws from global generators
        self._link, self._factories, self._first = link, factories, first

    def describe(self) -> tuple[Any, ...]:
        """Make the envs; return spaces, metadata, render mode of the first, where this code is, if all are saveable."""
        made = self.envs = SyncVectorEnv(self._factories, first=self._first, current=self._link.pulse)
        first, spaces = made.envs[0], (made.single_observation_space, made.single_action_space)
        return spaces, first.metadata, first.render_mode, HERE, made.are_saveable

    def attach(self, layout: Tree) -> None:
        """Map the arrays [N, ...]; their descriptor comes with the call."""
        arrays = SharedArrays(layout, self._link.receive_file()).arrays
        rows = slice(self._first, self._first + self.envs.num_envs)
        own = {name: map_tree(lambda array: array[rows], tree) for name, tree in arrays.items()}
        self.envs.memory, self._action, self._skipped = own["obs"], own["action"], own["skipped"]
        self._reward, self._terminated, self._truncated = own["reward"], own["terminated"], own["truncated"]

    def step(self) -> tuple[dict[str, Any], Any] | None:
        """Step all envs but the skipped ones; return infos and rewards unless all of it is in shared memory."""
        actions = map_tree(np.copy, self._action)  # envs keep the last action they were given
        self.envs.park(np.flatnonzero(self._skipped))
        _, rewards, self._terminated[:], self._truncated[:], infos = self.envs.step(actions)
        if rewards.ndim > 1:  # [n, A] of several agents: A is not known in advance
            return infos, rewards
        self._reward[:] = rewards
        return (infos, None) if infos else None

    def reset(self, seeds: Sequence[tuple[int, int | None]], options: dict[str, Any] | None) -> Any:
        """Reset envs, given as (index, seed); return their infos, if there are any."""
        return self.envs.begin({i - self._first: seed for i, seed in seeds}, options)[1] or None

    def call(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any] | None = None) -> Any:
        """Call a method of the `SyncVectorEnv`."""
        return getattr(self.envs, method)(*arguments, **(options or {}))

    def close(self) -> None:
        """Close every env."""
        if hasattr(self, "envs"):
            self.envs.close_extras()


class EnvWorker(Worker):
    """A process that steps some of the envs: the indices `envs`, a range, and the same as `rows`, a slice."""

    start_hint = START_HINT

    def __init__(
        self, context: Any, factories: Any, envs: range, options: WorkerOptions, spins: bool, seed: int
    ) -> None:
        self.envs, self.rows = envs, slice(envs.start, envs.stop)
        arguments = (factories[self.rows], envs.start, seed)
        super().__init__(context, f"env {envs.start}", WorkerEnvs, arguments, options.step_timeout, spins)

    def who(self, pulse: int = IDLE) -> str:
        """Name the env of the pulse, or all of them."""
        envs = self.envs if pulse < 0 else [pulse]
        return f"env{'s' if len(envs) > 1 else ''} {', '.join(map(str, envs))} (pid {self.process.pid})"

    def _how_it_died(self) -> str:
        how = super()._how_it_died()
        return how.replace("was killed", "were killed") if len(self.envs) > 1 else how

    def _death_text(self) -> str:
        current = int(self.pulse[0])
        return super()._death_text() + (f", in env {current}" if len(self.envs) > 1 and current >= 0 else "")

    def _start_text(self, error: Exception) -> str:
        # Compared by name, because this package does not import pickle: what cannot be sent raises one of the three.
        if type(error).__name__ == "PicklingError" or isinstance(error, AttributeError | TypeError):
            text = f"{self.name}: the factory cannot travel to a worker process ({type(error).__name__}: {error})"
            hint = "Define it, and its wrappers, as functions or classes at the top level of a module"
            return f"{text}. {hint}, or use start_method='fork' or backend='sync'."
        return super()._start_text(error)

    def _failure_text(self, failure: Failure) -> str:
        env = int(self.pulse[0])
        if failure.is_ours:
            return failure.message
        if env < 0:
            return super()._failure_text(failure)
        return failure_text(env, self.when, failure)


class WorkerVectorEnv(MaskedVectorEnv):
    """Steps N envs in worker processes, each a few of them.

    The same seeds give the same data as in this process, bit for bit, if an env draws from its own `np_random` alone:
    each worker has global random streams of its own. Actions are cast to the dtype of their space.

    An env that raises, takes longer than `step_timeout` for its making, a step or a reset, or dies with its process,
    raises an `EnvError`; after the latter two all workers are ended. With `on_env_error="restart"` its process is
    started again instead, with all the envs in it: the step is no transition (`infos["rltrainer_no_transition"]`), and
    the next episodes start as after any other end, with the next seeds of these envs.

    `factories` are one per env; each returns a new env, all with equal spaces. `seed` is as in `MaskedVectorEnv`;
    `options` are the fields of `WorkerOptions`, which `make_vec` explains.

    Raises:
        EnvError: a factory cannot be sent to another process, raises, or returns something else than a new env.
        SpaceError: an env's spaces differ from the first one's, or are not supported.
    """

    _numbers: ClassVar = itertools.count()  # of envs without a seed: their streams must differ

    def __init__(self, factories: Sequence[Callable[[], Env]], seed: int | None = None, **options: Any) -> None:
        super().__init__(len(factories), seed)
        self._options, self._factories = WorkerOptions(**options), list(factories)
        self._root = stream_seed("workers", next(self._numbers)) if seed is None else seed
        self._context = make_context(self._options.start_method, "make_vec")
        self.num_restarts = 0  # failures so far that led to a restart
        self.group = WorkerGroup[EnvWorker]("WorkerVectorEnv")
        if self._options.step_timeout is not None:
            self.group.tick = min(self.group.tick, self._options.step_timeout / 4)
        try:
            count = min(self._options.num_workers or num_cores(), len(factories))
            self._spins = count <= num_cores()
            for rows in np.array_split(np.arange(len(factories)), count):
                self.group.workers.append(self._start(range(rows[0], rows[-1] + 1)))
            self._declare_as(self.group.call_all("the making of the envs", "describe"))
            self.arrays = SharedArrays(self._layout())
            self.group.call_all("its start", "attach", self.arrays.layout, file=self.arrays.file)
        except BaseException:
            self.group.end(grace=0.5)
            raise
        # Envs with an episode cut outside of a step, when another env of their process failed in its reset: the next
        # step reports it, as a truncation without a transition.
        self._cut: set[int] = set()
        self._reward_shape: tuple[int, ...] | None = None  # of several agents, once it was seen

    def _reset(self, due: dict[int, int | None], options: dict[str, Any] | None) -> tuple[Tree, dict[str, Any]]:
        infos: dict[str, Any] = {}
        todo = due
        while todo:
            restarted: set[int] = set()
            workers = [worker for worker in self.group.alive if not todo.keys().isdisjoint(worker.envs)]
            with self.group.ended_by_a_loss():
                for worker in workers:
                    worker.call(self._when, "reset", [(i, todo[i]) for i in worker.envs if i in todo], options)
            results = self.group.gather(workers, self.lost(restarted))
            for worker, result in zip(workers, results, strict=True):
                _merge_infos(infos, result or {}, worker.rows, self.num_envs)
            self._cut |= restarted - due.keys() - self._needs_reset - self._parked  # it was not their turn
            todo = {i: due[i] for i in todo if i in restarted}  # with the same seeds
        self._cut -= due.keys()
        obs = map_tree(np.copy, self.arrays.arrays["obs"])
        copy_rows(obs, self._obs, self._cut)
        return obs, infos

    def step(self, actions: Any) -> StepOutcome:
        """Step every env that is not parked; other actions are a `ParamsError`. See `MaskedVectorEnv.step`."""
        self._begin_step()
        arrays = self.arrays.arrays

        def write(here: Any, given: Any) -> None:
            if np.shape(given) != here.shape:
                self._raise_invalid("step", "actions", f"must have shape {here.shape}", given)
            here[...] = given

        map_tree(write, arrays["action"], actions)  # to where the workers read them
        arrays["skipped"][:] = False
        arrays["skipped"][[*self._cut, *self._parked]] = True
        restarted: set[int] = set()
        workers = list(self.group.alive)
        with self.group.ended_by_a_loss():
            for worker in workers:
                worker.step(self._when)
        results = self.group.gather(workers, self.lost(restarted))
        obs = map_tree(np.copy, arrays["obs"])
        reward, terminated, truncated = (arrays[name].copy() for name in ("reward", "terminated", "truncated"))
        infos: dict[str, Any] = {}
        of_agents: list[tuple[EnvWorker, Any]] = []  # rewards of several agents
        for worker, result in zip(workers, results, strict=True):
            if result is not None:
                _merge_infos(infos, result[0], worker.rows, self.num_envs)
                if result[1] is not None:
                    of_agents.append((worker, result[1]))
        if of_agents:
            self._reward_shape = (self.num_envs, *of_agents[0][1].shape[1:])
        if self._reward_shape is not None:  # perhaps without any in this step: workers may have been restarted
            reward = np.zeros(self._reward_shape)
        for worker, values in of_agents:
            check_reward_shape(worker.envs[0], values[0], of_agents[0][0].envs[0], reward.shape[1:])
            reward[worker.rows] = values
        # In the step in which an episode is cut, its env reports a truncation, reward 0 and its last observation once
        # more: the adapter marks it `valid=False`, and the trajectory ends with the transition before.
        if cut := (restarted | self._cut) - self._parked:
            rows = sorted(cut)
            copy_rows(obs, self._obs, rows)
            reward[rows], terminated[rows], truncated[rows] = 0.0, False, True
            infos[NO_TRANSITION] = np.isin(np.arange(self.num_envs), rows)
            self._cut = set()
        return self._end_step(obs, reward, terminated, truncated, infos)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call each env's method of this name, or read its attribute; the values travel through a pipe."""
        results = self.group.call_all(f"call({name!r})", "call", "call", (name, *args), kwargs)
        return tuple(value for values in results for value in values)

    def _set_each(self, name: str, values: Sequence[Any]) -> None:
        arguments = [("set_attr", (name, values[worker.rows])) for worker in self.group.alive]
        self.group.call_each(f"set_attr({name!r})", "call", arguments)

    def load_states(self, states: Sequence[State]) -> None:
        """Let each env, which was reset before, load its state."""
        self._when = "load_state_dict"
        arguments = [("load_states", (states[worker.rows],)) for worker in self.group.alive]
        self.group.call_each(self._when, "call", arguments)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env and end the workers, in at most five seconds; never raises."""
        self.group.end()
        self.arrays.close()

    def lost(self, restarted: set[int]) -> Callable[[EnvWorker, EnvError], None] | None:
        """Return the `lost` of `WorkerGroup.gather`, which adds the envs of restarted workers to a set."""
        restarts = self._options.on_env_error == "restart"
        return (lambda *lost: restarted.update(self._restart(*lost).envs)) if restarts else None

    def _restart(self, worker: EnvWorker, error: EnvError) -> EnvWorker:
        """Start a worker again that is lost, or in which an env failed; a failure in that counts like the first."""
        limit = self._options.max_restarts
        while True:
            if self.num_restarts >= limit:
                self.group.end(grace=0.5)
                raise EnvError(f"{error}\n(after {self.num_restarts} restarts; max_restarts={limit})") from error
            self.num_restarts += 1
            logging.getLogger("rltrainer").warning("restart %d of %d: %s", self.num_restarts, limit, error)
            number = self.group.workers.index(worker)
            self.group.end_all([worker], os.getpid(), grace=0.0 if isinstance(error, WorkerLostError) else 1.0)
            worker = self.group.workers[number] = self._start(worker.envs)
            try:
                worker.call("the making of the envs", "describe")
                worker.receive()
                worker.call("its start", "attach", self.arrays.layout, file=self.arrays.file)
                worker.receive()
                return worker
            except EnvError as another:
                error = another

    def _start(self, envs: range) -> EnvWorker:
        seed = derive_seed(self._root, "worker", self._options.first_env + envs.start, self.num_restarts)
        return EnvWorker(self._context, self._factories, envs, self._options, self._spins, seed)

    def _layout(self) -> Tree:
        """Return the layout of the arrays through which each step goes; `skipped` are envs that it leaves out."""
        n = self.num_envs
        flags, numbers = np.dtype((np.bool_, (n,))), np.dtype((np.float64, (n,)))
        spaces = {"obs": self._spaces, "action": leaf_spaces(self.single_action_space)}
        batches = map_tree(lambda space: np.dtype((space.dtype, (n, *leaf_shape(space)))), spaces)
        return {**batches, "reward": numbers, "terminated": flags, "truncated": flags, "skipped": flags}

    def _declare_as(self, descriptions: list[tuple[Any, ...]]) -> None:
        spaces, metadata, render_mode, code, _ = descriptions[0]
        self.are_saveable = all(description[-1] for description in descriptions)
        for worker, (found, *_) in zip(self.group.alive, descriptions, strict=True):
            check_same_spaces(worker.envs[0], found, 0, spaces)
        if code != HERE:
            raise EnvError(f"the workers imported rltrainer from {code}, not from {HERE}: use start_method='spawn'")
        self._declare(spaces, metadata, render_mode)


def _merge_infos(infos: dict[str, Any], part: dict[str, Any], rows: slice, num_envs: int) -> None:
    """Put the infos of some envs, gathered as gymnasium does, among the infos of all."""
    for key, value in part.items():
        if isinstance(value, dict):
            _merge_infos(infos.setdefault(key, {}), value, rows, num_envs)
            continue
        if key not in infos:
            shape = (num_envs, *value.shape[1:])
            infos[key] = np.full(shape, None) if value.dtype == object else np.zeros(shape, value.dtype)
        infos[key][rows] = value
