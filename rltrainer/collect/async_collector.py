"""Collection by worker processes that act while the learner updates."""

import copy
import functools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn

import gymnasium as gym
import numpy as np
from torch import nn

from rltrainer.collect.async_rows import Arrays, from_arrays, join_envs, mean_version, single_row
from rltrainer.collect.async_worker import MAX_CHUNK, CollectingTeam, CollectingWorker, Request, TeamWriter, dumped
from rltrainer.collect.collect_stats import CollectStats
from rltrainer.collect.collector import AnyPolicy
from rltrainer.collect.data_source import DataSource, EpisodeWriter, Process
from rltrainer.collect.episode_infos import checked_keys
from rltrainer.collect.rules import check_counts, processed, require_buffer, require_same_spaces
from rltrainer.collect.shared_weights import Layout, Publisher, SharedWeights
from rltrainer.collect.weight_sync import Counts, SyncState, WeightSync
from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.errors import CheckpointError, EnvError, ParamsError
from rltrainer.interval import Every
from rltrainer.nets import Exploration, Policy
from rltrainer.nets.exploration import AnyExploration
from rltrainer.processes.channel import dumps
from rltrainer.processes.worker import make_context
from rltrainer.seeding import Integer, derive_seed
from rltrainer.state.stateful import Stateful
from rltrainer.types import Rollout
from rltrainer.validation.field_rules import NonNegativeInt, PositiveFloat, PositiveInt, Rule, are_names, checked

MakeEnvs = Annotated[
    Callable[[], gym.vector.VectorEnv[Any, Any, Any]],
    Rule("a callable () -> VectorEnv, such as functools.partial(rl.make_vec, env_id, num_envs=1)", callable),
]
Modules = Annotated[
    Mapping[str, nn.Module],
    Rule(
        'a mapping from paths to modules, such as {"exploration.target": network}',
        lambda v: isinstance(v, Mapping) and are_names([*v]) and all(isinstance(x, nn.Module) for x in v.values()),
    ),
]
StartMethod = Literal["forkserver", "spawn", "fork"]


@dataclass
class AsyncState:
    """State of an `AsyncCollector`; `workers` has a state of each worker's collector."""

    workers: list[dict[str, Any]]
    weights: SyncState
    num_samples: NonNegativeInt


class AsyncCollector(Stateful[AsyncState]):
    """Collects by worker processes that act with copies of the policy while the learner updates it.

    A collection takes equally many rows from all workers, in order, so that all envs have the same share of the data;
    meanwhile workers continue, as far as `max_ahead` lets them, and then wait. So a slow learner gets no more data than
    it asked for, and a slow env no more gradient steps.

    ```
    make_envs = functools.partial(rl.make_vec, "HalfCheetah-v5", num_envs=1)
    collector = rl.AsyncCollector(algorithm.policy, make_envs, num_workers=2, buffer=buffer)
    ```

    A script that makes one does so under `if __name__ == "__main__":`.

    Args:
        policy: copies of it choose the actions.
        make_envs: makes the vector env of one worker, there. Seeds of workers differ, also where `make_envs` gives one.
        num_workers: together they have N envs, the first worker's first.
        buffer: a `ReplayBuffer` or `RolloutBuffer` of N envs; None stores nothing.
        exploration, info_keys: see `Collector`.
        sync_every: how often the workers get the policy's weights; None is each training step. A worker takes the
            newest before each chunk of at most 16 rows.
        modules: further modules that the workers get weights of, from their path in a worker's collector, such as
            `"exploration.target"`, to the module here; one under `"policy"` acts in the policy's place.
        max_ahead: steps that each env may be ahead of the last collection; None for the steps of one collection, and at
            least 16. With 0, with random actions and with episodes, workers wait for each collection, and make it with
            the weights of its start.
        step_timeout: seconds that a worker may take to make its envs, for a step or a reset; None for any time.
        start_method: of the processes; None takes forkserver where there is one.

    Attributes:
        num_envs: N.
        needs_reset: whether the next collection starts with a reset of all envs.
        version_lag: versions between the newest weights and the weights that chose the last collection's actions, in
            the mean.

    Raises:
        ParamsError: an argument breaks its rule, or cannot travel to another process.
        SpaceError: the envs' spaces are not the policy's or the buffer's.
        EnvError: the envs cannot be made.
    """

    owner: ClassVar[str] = "AsyncCollector"  # which errors name
    _pack: Callable[[Any], bytes] = staticmethod(dumps)  # what is not data, for workers
    _make_weights: Callable[[Layout], Any] = SharedWeights
    _max_lag: float = math.inf  # versions that the weights of collected rows may be older
    state_class, state_name = AsyncState, "collector"
    varies_in_length: ClassVar[bool] = False

    def __init__(
        self,
        policy: Policy,
        make_envs: Callable[[], gym.vector.VectorEnv[Any, Any, Any]],
        num_workers: int = 1,
        buffer: ReplayBuffer | RolloutBuffer | None = None,
        exploration: Exploration | None = None,
        *,
        sync_every: Every | None = None,
        modules: Mapping[str, nn.Module] | None = None,
        max_ahead: int | None = None,
        step_timeout: float | None = 120.0,
        start_method: StartMethod | None = None,
        info_keys: Sequence[str] = (),
    ) -> None:
        checked(self.owner, "policy", policy, AnyPolicy)
        make_envs = checked(self.owner, "make_envs", make_envs, MakeEnvs)
        num_workers = checked(self.owner, "num_workers", num_workers, PositiveInt)
        self._max_ahead = checked(self.owner, "max_ahead", max_ahead, NonNegativeInt | None)
        step_timeout = checked(self.owner, "step_timeout", step_timeout, PositiveFloat | None)
        start_method = checked(self.owner, "start_method", start_method, StartMethod | None)
        modules = checked(self.owner, "modules", modules, Modules | None)
        self._info_keys = checked_keys(self.owner, info_keys)
        self.policy, self.exploration = policy, checked(self.owner, "exploration", exploration, AnyExploration | None)
        self._connect(num_workers)
        # It holds no collector, and neither does the team: workers end with the last name of their collector.
        weighted = {"policy": policy, **(modules or {})}
        self._publisher = Publisher(self.owner, policy, weighted, self._make_weights, step_timeout)
        self._sync = WeightSync(self.owner, sync_every, self._publisher.publish)
        self._for_workers()
        pickled = dumped(self.owner, "make_envs", make_envs, self._pack)
        self._team = self._make_team(pickled, num_workers, start_method, step_timeout)
        self.observation_space, self.action_space = self._team.spaces
        self.num_envs, self.frame_skip = num_workers * self._team.num_envs, self._team.frame_skip
        self.buffer: ReplayBuffer | RolloutBuffer | None = None
        self._config: tuple[Any, ...] | None = None  # the settings that the workers have
        self._mode: tuple[bool, bool] | None = None
        self._rollout: Rollout | Arrays | None = None
        self._token, self._is_broken, self.needs_reset = object(), True, True
        self.version_lag, self._num_samples = 0.0, 0
        self._utd_ratio: float | None = None
        try:
            require_same_spaces("policy", policy, self)
            if buffer is not None:
                self.attach_buffer(buffer)
        except BaseException:
            self.close()
            raise

    def _connect(self, num_workers: int) -> None:
        """Reach what the workers run on; called once all arguments are known to be right."""

    def _make_team(
        self, make_envs: bytes, num_workers: int, method: str | None, timeout: float | None
    ) -> CollectingTeam:
        context = make_context(method, self.owner)
        start = functools.partial(CollectingWorker, context, self.owner, make_envs, timeout)
        return CollectingTeam(self.owner, start, num_workers, self._sync.require)

    def attach_buffer(self, buffer: ReplayBuffer | RolloutBuffer) -> None:
        """Write into this buffer from now on; errors as of `Collector.attach_buffer`."""
        require_buffer(self.owner, self.policy, self, buffer, ", those of all workers")
        self._forget_ahead()
        self.buffer, self._is_broken = buffer, True

    def seed(self, seed: int) -> None:
        """Seed actions and envs of all workers, each with its own streams; a `ParamsError` unless it is an integer."""
        seed = checked(f"{self.owner}.seed", "seed", seed, Integer)
        seeds = [("seed", derive_seed(seed, "worker", worker.number)) for worker in self._begun().workers]
        self._forget_ahead()
        self._team.call_each("its seed", "call", seeds)

    def reset(self, reset_buffer: bool = False, first_episode: bool = False) -> None:
        """Reset all envs and drop rows that were not collected; arguments as of `Collector.reset`."""
        self._begun()
        self._forget_ahead()
        self._team.call_all("a reset", "call", "reset", False, first_episode)
        self.needs_reset = False
        if reset_buffer and self.buffer is not None:
            self.buffer.clear()

    def sync(self, counts: Counts | None = None) -> None:
        """Publish the policy's weights if they are due; see `Collector.sync`."""
        self._begun()
        if counts is not None and "gradient_step" in counts:
            if not counts.get("env_step", 1):  # a run starts
                self._num_samples = 0
            self._utd_ratio = counts["gradient_step"] / self._num_samples if self._num_samples else None
        if self._sync.sync(counts):
            self._forget_ahead()  # these rows were collected with the weights of another run

    @property
    def has_stale_data(self) -> bool:
        """Return whether workers may act with older weights than the policy's."""
        return 0 not in (self._max_ahead, self._max_lag) or self._sync.has_stale_data

    def collect_random(self, num_rows: int) -> Rollout:
        """Return a rollout of random actions [T, N]; see `Collector.collect_random`."""
        self._begun()
        self._forget_ahead()
        arrays = self._team.call_all("random actions", "collect_random", num_rows)
        self.needs_reset = True
        return from_arrays(join_envs(arrays))

    def collect(
        self,
        num_steps: int | None = None,
        num_episodes: int | None = None,
        random: bool = False,
        explore: bool = True,
        process: Process | None = None,
    ) -> CollectStats:
        """Take the workers' next rows, and store them; as `Collector.collect`. A lost worker is an `EnvError`."""
        num_steps, num_episodes = check_counts(num_steps, num_episodes)
        started = time.perf_counter()
        self._begun()
        if self.needs_reset:
            self.reset()
        self.needs_reset = True  # unless all goes well
        self._rollout = None
        num_rows = None if num_steps is None else -(-num_steps // self.num_envs)
        request = Request(num_rows, num_episodes, random, explore)
        if num_rows is None or self.buffer is None:
            self._forget_ahead()
            parts = self._team.collect(request, stores=self.buffer is not None)
        else:
            if self._mode != (random, explore):  # rows that are ahead were collected in another one
                self._forget_ahead()
                self._mode = random, explore
            usual = min(max(num_rows, MAX_CHUNK), self._max_lag * num_rows)  # then no row gets too old
            ahead = int(usual) if self._max_ahead is None else self._max_ahead
            parts = self._team.take(request, 0 if random else ahead, self._sync.state.version - self._max_lag)
        if self.buffer is not None:
            self._store(join_envs([part.arrays for part in parts]), process)
        self.needs_reset = num_episodes is not None
        stats = CollectStats.merge([part.stats for part in parts])
        stats = replace(stats, collect_time=time.perf_counter() - started)
        self._num_samples += 0 if random else stats.num_collected_steps
        self.version_lag = self._sync.state.version - mean_version(parts)
        return stats

    def rollout(self) -> Rollout:
        """Return the last collection [T, N]; a `ParamsError` without a buffer, and before the first."""
        if self._rollout is None:
            rule = "must be given, and something collected, to look at what was stored"
            raise ParamsError.about(self.owner, "buffer", rule, self.buffer)
        if not isinstance(self._rollout, Rollout):
            self._rollout = from_arrays(self._rollout)
        return self._rollout

    def settings(self) -> dict[str, float]:
        """Return the version of the weights, its lag, and gradient steps per env step, for the log."""
        found = {"policy_version": float(self._sync.state.version), "version_lag": self.version_lag}
        return found if self._utd_ratio is None else found | {"utd_ratio": self._utd_ratio}

    def get_state(self) -> AsyncState:
        """Return the states of all workers, once they have answered, and the version of their weights.

        Rows that were not collected are not in it: they were not counted, and are collected again.
        """
        self._begun().settle(keeps=True)
        workers = self._team.call_all("the saving of its state", "call", "state_dict")
        return AsyncState(workers, replace(self._sync.state), self._num_samples)

    def check_state(self, state: AsyncState) -> None:
        """Check a state, in the workers too; errors are a `CheckpointError`. Envs continue as in a `Collector`."""
        if len(state.workers) != len(self._begun().workers):
            expected = f"expected those of {len(self._team.workers)} workers, found {len(state.workers)}"
            raise CheckpointError(f"collector.workers: {expected}")
        self._team.settle(keeps=True)
        states = [(each,) for each in state.workers]
        for number, texts in enumerate(self._team.call_each("the check of a state", "check_state", states)):
            for text in texts:
                warnings.warn(f"worker {number}: {text}", stacklevel=4)

    def set_state(self, state: AsyncState) -> None:
        """Take over the state that was checked last."""
        self._forget_ahead()
        self._team.call_all("the loading of a state", "load_state")
        self._sync.load(state.weights)
        self._num_samples, self.needs_reset = state.num_samples, False
        self._is_broken = True  # the rows that were not collected are missing

    @property
    def num_env_restarts(self) -> int:
        """The envs that failed so far and were restarted."""
        return sum(worker.num_env_restarts for worker in self._team.workers)

    def record_episodes(self, folder: str | Path) -> EpisodeWriter:
        """Record all episodes that end from now on; see `Collector`. The first worker's envs count first."""
        self._begun().settle(keeps=True)
        arguments = [(str(folder), worker.number * self._team.num_envs) for worker in self._team.workers]
        self._team.call_each("the record of its episodes", "record_episodes", arguments)
        return TeamWriter(self._team)

    def shares_an_env(self, other: DataSource) -> bool:
        """Return whether they are the same: its envs live in its own processes."""
        return other is self

    def close(self) -> None:
        """Close the envs and end the workers, in at most five seconds; never raises."""
        self._team.end()

    def __getstate__(self) -> NoReturn:
        """Raise an `EnvError`: processes cannot be copied."""
        raise EnvError(f"{self.owner}: cannot be copied, as its envs live in other processes. Make one with its own.")

    def _begun(self) -> CollectingTeam:
        """Return the team once all workers have the policy and the present settings."""
        if self._publisher.weights is None:
            weights = self._publisher.begin()
            arguments = self._for_workers(), weights.layout, self._info_keys
            self._team.call_all("its start", "begin", *arguments, file=weights.file)
            self._publisher.weights = weights  # last: after an interrupt the start is repeated
        columns = None if self.buffer is None else self.buffer.extra
        config = self.exploration, self.policy.exploration, columns, isinstance(self.buffer, ReplayBuffer)
        if self._config is None or not all(new is old for new, old in zip(config, self._config, strict=True)):
            self._forget_ahead()
            explorations = dumped(self.owner, "exploration", config[:2], self._pack)
            self._team.call_all("its settings", "configure", explorations, *config[2:], list(self._publisher.modules))
            self._config = config
        return self._team

    def _store(self, arrays: Arrays, process: Process | None) -> None:
        # Store rows that the workers have checked.
        buffer = self.buffer
        if self._is_broken:
            arrays["starts"] = np.ones_like(arrays["starts"])
        rollout: Rollout | Arrays = arrays  # made a rollout when it is asked for
        row = single_row(arrays) if process is None and isinstance(buffer, ReplayBuffer) else None
        if isinstance(buffer, ReplayBuffer) and row is not None:  # takes a fifth of the time of a rollout
            if arrays["starts"].any():
                buffer.end_trajectory(arrays["starts"])
            buffer.add(*row, token=self._token)
        elif buffer is not None:
            rollout = from_arrays(arrays) if process is None else processed(process, from_arrays(arrays))
            if isinstance(buffer, ReplayBuffer):
                buffer.add_rollout(rollout, token=self._token)
            else:
                buffer.hold(rollout)
                rollout = buffer.rollout()
        self._rollout = rollout
        self._is_broken = False

    def _forget_ahead(self) -> None:
        # Drop rows that were not collected: the next collection continues no trajectory.
        if self._team.workers and self._publisher.weights is not None:
            self._is_broken |= self._team.settle(keeps=False)

    def _for_workers(self) -> bytes:
        """Return what a copy of the policy for the workers is made from, on the CPU."""
        copied = copy.deepcopy(self.policy).to("cpu")
        copied.zero_grad()
        return dumped(self.owner, "policy", copied, self._pack)
