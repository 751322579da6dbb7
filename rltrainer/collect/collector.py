"""The collector: the only place that steps envs."""

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import gymnasium as gym
import numpy as np
import torch

from rltrainer.collect.action_selection import ActionSelection
from rltrainer.collect.collect_stats import CollectStats
from rltrainer.collect.data_source import DataSource, EpisodeWriter, Process
from rltrainer.collect.episode_counter import EpisodeCounter, RunningEpisodes
from rltrainer.collect.episode_infos import EpisodeInfos, checked_keys
from rltrainer.collect.faults import FaultChecker, check_obs, raise_choice_fault
from rltrainer.collect.rules import check_counts, processed, require_buffer, require_one_agent, require_same_spaces
from rltrainer.collect.tensor_rollouts import TensorRollouts
from rltrainer.collect.weight_sync import CopyElsewhere, Counts, OlderWeights, SyncState, acting_policy
from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.data.storage import Array
from rltrainer.envs import AgentsAsEnvs, EnvAdapter, frame_skip
from rltrainer.envs.adapter.env_state import AdapterState
from rltrainer.envs.deferred_envs import DeferredEnvs
from rltrainer.envs.tensors.tensor_vector_env import TensorVectorEnv
from rltrainer.envs.vector_env import env_named, raise_named, share_an_env
from rltrainer.errors import NonFiniteError, ParamsError, SpaceError
from rltrainer.interval import Every
from rltrainer.nets import Exploration, Policy
from rltrainer.nets.exploration import AnyExploration
from rltrainer.nets.modes import EvalMode
from rltrainer.seeding import Integer, check_generator, derive_seed, make_generator, set_generator
from rltrainer.state.stateful import Stateful
from rltrainer.tree import Tree, to_array
from rltrainer.types import Rollout
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt, checked, instance_of
from rltrainer.validation.suggestions import explains_arguments

AnyVectorEnv = Annotated[
    gym.vector.VectorEnv[Any, Any, Any],
    instance_of(gym.vector.VectorEnv, hint="Write Collector(policy, rl.make_vec(env_id, num_envs=1))."),
]
AnyPolicy = Annotated[Policy, instance_of(Policy, hint="Pass algorithm.policy, or ActorCritic.for_envs(envs).")]

OF_OPEN = ("adapter", "_selection", "_episodes", "_checker", "_agents", "_tensors")
"""Attributes that step the envs, which there are once envs are made."""


@dataclass(kw_only=True)
class CollectorState:
    """State of a collector."""

    generator: Any  # its bytes
    adapter: AdapterState
    num_rows: NonNegativeInt
    needs_reset: bool
    memory: Any = None  # [N, S], or None
    weights: SyncState | None = None  # of a copy that acts
    older: Any = None  # the weights of a copy that acts while updates run, by name
    episodes: RunningEpisodes | None = None
    is_stored: bool = False  # whether the buffers hold the steps that led to where the envs are

    def problem(self) -> str | None:
        """Return the error of a state that was read from a file, or None."""
        if not (self.needs_reset or self.adapter.is_started):
            return "needs_reset: expected True for envs that were not started, found False"
        return None


class Collector(Stateful[CollectorState]):
    """Steps a policy in a vector env and writes the data into a buffer.

    A collection goes into a rollout first; a `ReplayBuffer` receives it at the end, once it is known to be finite. So
    a faulty env leaves nothing of its collection behind. While envs are stepped, the policy is in eval mode: dropout is
    off, and batch norms take their running statistics.

    Args:
        policy: chooses the actions.
        envs: any gymnasium vector env, in any autoreset mode. Envs of `make_vec` are made when they are first needed
            under `torchrun`.
        buffer: a `ReplayBuffer` or `RolloutBuffer`; None stores nothing.
        exploration: replaces the policy's own exploration.
        max_episode_steps: `collect(num_episodes=)` truncates an episode that gets as long as this; None waits.
        device: where a copy of the policy acts, with the policy's weights as often as `sync_every` says; None, and the
            policy's own device, make no copy: the policy itself acts.
        sync_every: how often the copy gets the present weights, an int in training steps; None is each of them.
        info_keys: of numbers in the infos with which episodes end, such as `("is_success",)`; `CollectStats.infos` has
            them, and a trainer logs their means beside returns.

    Attributes:
        num_rows: steps that each env has taken since its first episode began.
        needs_reset: whether the next collection starts with a reset of all envs.
        keeps_env_action: whether the buffer gets the actions that the envs received, not the samples.
        frame_skip: frames of the envs' engine in each env step; see `rl.frame_skip`.
        shard: rank and number of the shards of a run; it steps a part of the run's envs. None for all envs.
        num_all_envs: the number of envs of all shards.

    Raises:
        SpaceError: the envs' spaces are not the policy's or the buffer's, the bounds of actions included.
        ParamsError: an argument is of another kind; or the buffer is for another number of envs, or declares columns
            that the policy cannot fill.
    """

    state_class: ClassVar[type[Any]] = CollectorState
    state_name = "collector"
    adapter_class: ClassVar[type[EnvAdapter]] = EnvAdapter
    varies_in_length: ClassVar[bool] = False
    has_parts: ClassVar[bool] = True

    @explains_arguments
    def __init__(
        self,
        policy: Policy,
        envs: gym.vector.VectorEnv[Any, Any, Any],
        buffer: ReplayBuffer | RolloutBuffer | None = None,
        exploration: Exploration | None = None,
        max_episode_steps: int | None = None,
        device: torch.device | str | None = None,
        sync_every: int | Every | None = None,
        info_keys: Sequence[str] = (),
    ) -> None:
        envs = checked("Collector", "envs", envs, AnyVectorEnv)
        self.policy = checked("Collector", "policy", policy, AnyPolicy)
        self.exploration = checked("Collector", "exploration", exploration, AnyExploration | None)
        self.max_episode_steps = checked("Collector", "max_episode_steps", max_episode_steps, PositiveInt | None)
        self._acting, self._weights = acting_policy("Collector", policy, device, sync_every)
        self._info_keys = checked_keys("Collector", info_keys)
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        self.buffer: ReplayBuffer | RolloutBuffer | None = None
        self.rollout_buffer: RolloutBuffer | None = None
        self.keeps_env_action, self._eval_mode = False, EvalMode(self._acting)
        self._older: OlderWeights | None = None
        self.shard: tuple[int, int] | None = None
        self.num_all_envs = envs.num_envs
        if isinstance(envs, DeferredEnvs):
            self._hold(envs)
            self.frame_skip = frame_skip(envs)
            require_same_spaces("policy", policy, self)
        else:
            self._open(envs)
        if buffer is not None:
            self.attach_buffer(buffer)
        self.generator = make_generator(None, self._acting.device)

    def _open(self, envs: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        """Make all that steps these envs."""
        keys = self._info_keys
        self.adapter = self.adapter_class(EpisodeInfos(envs, keys) if keys else envs, self._acting.device)
        self._hold(self.adapter.envs)
        self.frame_skip = frame_skip(envs)
        require_same_spaces("policy", self.policy, self)
        self._selection = ActionSelection(self._acting, self.adapter)
        self._agents = self.envs.unwrapped if isinstance(self.envs.unwrapped, AgentsAsEnvs) else None
        reader = self.envs.reader if isinstance(self.envs, EpisodeInfos) else None
        self._episodes = EpisodeCounter(self.num_envs, infos=reader, agents=self._agents)
        self._checker = FaultChecker(self.adapter, self._episodes)
        can_run = isinstance(envs, TensorVectorEnv) and envs.device == self._acting.device and not keys
        self._tensors = TensorRollouts(self._acting, cast(TensorVectorEnv, envs)) if can_run else None
        self._attach()

    def _hold(self, envs: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        """Hold envs in which no step was taken."""
        self.envs, self.num_envs = envs, envs.num_envs
        self.num_rows, self.needs_reset, self._token = 0, True, TrajectoryToken()
        self._processed: Rollout | None = None
        self._acted_on: TrajectoryToken | None = None  # what the last collection with older weights continued

    @property
    def _is_open(self) -> bool:
        return not isinstance(self.envs, DeferredEnvs)

    def open(self) -> None:
        """Make the envs, if they are not made: a shard's part of them, and without a trainer all of them."""
        if isinstance(self.envs, DeferredEnvs):
            if self.shard is None:
                self._open(self.envs.env)
            else:
                # A rank must not move torch's generator further than others do, whichever they share a process with.
                with torch.random.fork_rng(devices=[]):
                    self._open(self.envs.part(*self.shard))

    def check_part(self, owner: str, world: int) -> DeferredEnvs:
        """Return what makes the envs, if `take_part` can take a part of `world`; else raise its errors."""
        held: Any = require_collector(owner, self).envs
        if self._is_open and self._info_keys:
            held = held.env
        envs: DeferredEnvs | None = vars(held).get("recipe") if self._is_open else held
        if envs is None:
            rule, hint = "must be made by make_vec in a run of several shards", "wrap single envs by its wrappers=."
            raise ParamsError.about(owner, "envs", rule, held, f"Make it with rl.make_vec, and {hint}")
        if envs.num_envs % world:
            least = envs.num_envs // world * world
            hint = f"Take {least} or {least + world}." if least else f"Take {world}."
            rule = f"must be a multiple of the number of shards, {world}"
            raise ParamsError.about(owner, "num_envs", rule, envs.num_envs, hint)
        if isinstance(self.buffer, ReplayBuffer):
            self.buffer.check_part()
        return envs

    def replaced(self) -> Iterator[object]:
        """Yield the objects that `take_part` replaces, which copies that are about to take a part may share."""
        if self._is_open:
            yield from (self.envs, *(vars(self)[name] for name in OF_OPEN))
        if self.buffer is not None:
            yield from self.buffer.rings()

    def take_part(self, owner: str, rank: int, world: int) -> None:
        """Become the collector of a shard among `world`, with its share of the envs, which `open` makes, and buffer.

        Raises:
            ParamsError: `make_vec` did not make the envs, or `world` shards cannot share them out; about `owner`. Or
                the buffer's sampler has a fixed size.
            ReplayBufferError: there is data in the buffer.
        """
        envs = self.check_part(owner, world)
        if self._is_open:
            self.close()
            envs.close()
            for name in OF_OPEN:
                delattr(self, name)
        self._hold(envs)
        self.shard, self.num_envs, self.num_all_envs = (rank, world), envs.num_envs // world, envs.num_envs
        if self.buffer is not None:
            self.buffer.take_part(rank, num_envs=self.num_envs)

    def attach_buffer(self, buffer: ReplayBuffer | RolloutBuffer) -> None:
        """Write into this buffer from now on; errors as of `Collector`, if it does not fit the envs."""
        require_buffer("Collector", self.policy, self, buffer)
        self.buffer, self._token = buffer, TrajectoryToken()
        self.keeps_env_action = isinstance(buffer, ReplayBuffer)
        if self._is_open:
            self._attach()

    def _attach(self) -> None:
        if isinstance(self.buffer, RolloutBuffer):
            self.rollout_buffer = self.buffer
        elif self.buffer is not None:
            spaces = (self.observation_space, self.action_space)
            self.rollout_buffer = RolloutBuffer(1, self.num_envs, *spaces, extra=self.buffer.extra)
        if self.buffer is not None:
            self._selection.columns = tuple(self.buffer.extra)

    def seed(self, seed: int) -> None:
        """Seed actions, and the envs that carry no seed of their own; a `ParamsError` unless it is an integer."""
        seed = checked("Collector.seed", "seed", seed, Integer)
        self.open()
        own = () if self.shard is None else (self.shard[0],)
        self.generator.manual_seed(derive_seed(seed, "action", *own))
        self.adapter.seed(derive_seed(seed, "env"))

    def reset(self, reset_buffer: bool = False, first_episode: bool = False) -> None:
        """Reset all envs; `first_episode` starts with the seeds of the very first episodes, as each test step does."""
        self.open()
        with env_named(self.num_rows):
            self.adapter.reset(first_episode=first_episode)
        self.num_rows = 0 if first_episode else self.num_rows
        self._episodes.restart()
        self.needs_reset, self._token = False, TrajectoryToken()
        if reset_buffer and self.buffer is not None:
            self.buffer.clear()

    def sync(self, counts: Counts | None = None) -> None:
        """Give an acting copy the policy's weights, if they are due by a trainer's counters; at once without."""
        if self._weights is not None:
            self._weights.sync(counts)

    @property
    def can_overlap(self) -> bool:
        """Return whether a copy of the policy can act while updates run; see `overlap`."""
        in_tensors = self._tensors is not None if self._is_open else isinstance(self.envs.unwrapped, TensorVectorEnv)
        acts_here = type(self) is Collector and self._weights is None and not in_tensors
        return acts_here and self._acting.device.type == "cuda"

    def overlap(self, is_on: bool = True) -> None:
        """Act with the present weights, then always with those from before the last update, while that one runs."""
        self.open()
        if is_on != (self._older is not None):
            self._older = OlderWeights(CopyElsewhere(self.policy, self._acting.device)) if is_on else None
            self._acting = self.policy if self._older is None else self._older.copy
            columns, self.needs_reset = self._selection.columns, True
            self._selection, self._eval_mode = ActionSelection(self._acting, self.adapter), EvalMode(self._acting)
            self._selection.columns = columns
        if self._older is not None:
            self._older.publish()

    @property
    def has_stale_data(self) -> bool:
        """Return whether a copy of the policy acts; its weights may be older than the policy's."""
        return self._older is not None or (self._weights is not None and self._weights.has_stale_data)

    def collect(
        self,
        num_steps: int | None = None,
        num_episodes: int | None = None,
        random: bool = False,
        explore: bool = True,
        process: Process | None = None,
    ) -> CollectStats:
        """Step the envs and store the data; exactly one of the two counts is given. An error stores nothing.

        Args:
            num_steps: env steps; rounded up to a multiple of the number of envs.
            num_episodes: whole episodes, shared among the envs; all envs are reset first, and exactly this many are
                counted and stored, so that the choice does not depend on their lengths.
            random: act uniformly at random instead of by the policy.
            explore: whether the policy explores.
            process: a transform of the collection [T, N], with other rewards, goals or extras, before it is stored;
                called once it is known to be finite. The next collection overwrites the memory of its argument.

        Raises:
            ParamsError: both or neither count, or one that is not positive; or `max_episode_steps` cannot be kept.
            NonFiniteError: an env returned NaN or infinity, or the policy did.
            SpaceError: the policy chose an action outside its action space.
            EnvError: an env failed, or allows no action.
            TypeError: `process` returned no `Rollout` of the same shape.
        """
        num_steps, num_episodes = check_counts(num_steps, num_episodes)
        self.open()
        self._limit = self.max_episode_steps if num_episodes is not None else None
        if self._agents is not None:  # a team truncates its own episodes
            self._agents.max_episode_steps, self._limit = self._limit, None
        elif self._limit and (num_episodes or 0) > self.num_envs and not self.adapter.can_reset_one:
            rule = f"must be None for {num_episodes} episodes in {self.num_envs} envs that cannot be reset one by one"
            hint = 'Use rl.make_vec(..., backend="sync"), as many envs as episodes, or a time limit in the env.'
            raise ParamsError.about("Collector", "max_episode_steps", rule, self._limit, hint)
        started = time.perf_counter()
        if self._weights is not None:
            self._weights.require()
        if self.adapter.is_away and not self.needs_reset:
            self._resume()
        # Whole episodes start with a reset, and so does a collection after another adapter has moved the same envs.
        is_due = num_episodes is not None and not self.adapter.is_fresh
        if self.needs_reset or is_due or not self.adapter.is_current:
            self.reset()
        self._episodes.start(num_episodes)
        if self.rollout_buffer is not None:
            self.rollout_buffer.begin(self._token)
        num_rows_before, self._processed = self.num_rows, None
        self._checker.begin(num_rows_before)
        num_rows = None if num_steps is None else -(-num_steps // self.num_envs)
        # Until all is stored: the next collection must not continue one that failed half-way.
        self.needs_reset, is_stored = True, False
        try:
            with self._eval_mode.while_on():
                older, continues = self._older, self._acted_on is self._token
                with nullcontext() if older is None or not self.adapter.is_uploaded else older.acting(continues):
                    self._selection.begin(self.exploration, random, explore)
                    try:
                        if not self._run_tensors(num_rows):
                            parts = self._selection, self._episodes, self._checker, self.rollout_buffer
                            self._step_envs(num_rows, self.generator, *parts)
                        self._checker.check_policy(self.policy)
                    except (Exception, SystemExit) as error:
                        self._checker.name_cause(self.rollout_buffer)
                        raise_named(error, self.num_rows)
                        raise
                if older is not None:
                    older.publish()
                    self._acted_on = self._token
                self._store(process)
                is_stored = True
        finally:
            if not is_stored and self.rollout_buffer is not None:
                self.rollout_buffer.clear()
        # Envs past their quota are in the middle of episodes that do not count.
        self.needs_reset = num_episodes is not None
        num_env_steps = (self.num_rows - num_rows_before) * self.num_envs if num_episodes is None else None
        return self._episodes.stats(num_env_steps, time.perf_counter() - started)

    @torch.no_grad()
    def collect_random(self, num_rows: int) -> Rollout:
        """Return a rollout of random actions [T, N]; nothing is counted or stored, and no other random stream moves.

        The next collection resets the envs, to the episodes that they would have started without this.
        """
        self.open()
        adapter, before = self.adapter, self.num_rows
        seed = derive_seed(self.generator.initial_seed(), "aside")
        generator = make_generator(derive_seed(seed, "action"), self.generator.device)
        spaces = (adapter.observation_space, adapter.action_space)
        buffer = RolloutBuffer(num_rows, self.num_envs, *spaces, device=self.policy.device)
        selection, episodes = ActionSelection(self.policy, adapter), EpisodeCounter(self.num_envs)
        selection.random, checker = True, FaultChecker(adapter, episodes)
        checker.begin(before)
        self.needs_reset, self._limit = True, None
        if self._agents is not None:  # an earlier collection may have limited a team's episodes
            self._agents.max_episode_steps = None
        # Seeds, generator and counters are this call's own: a run collects later what it would without this.
        with adapter.aside(derive_seed(seed, "env")), env_named(before):
            adapter.reset()
            try:
                # In step, also where a subclass steps single envs.
                Collector._step_envs(self, num_rows, generator, selection, episodes, checker, buffer)
            except (Exception, SystemExit) as error:
                checker.name_cause(buffer)
                raise_named(error, self.num_rows)
                raise
            checker.check_collected(buffer, holds_samples=True)
        return buffer.rollout()

    def rollout(self) -> Rollout:
        """Return the data of the last collection [T, N]; a `ParamsError` without a buffer."""
        if self.rollout_buffer is None:
            raise ParamsError.about("Collector", "buffer", "must be given to look at what was stored", None)
        return self.rollout_buffer.rollout() if self._processed is None else self._processed

    def settings(self) -> dict[str, float]:
        """Return further values for rows of training: none."""
        return {}

    def get_state(self) -> CollectorState:
        """Return the state of generator, envs, memory, running episodes and counters; the buffer has its own."""
        self.open()
        continues = not self.needs_reset
        return CollectorState(
            generator=self.generator.get_state(),
            adapter=self.adapter.get_state(continues),
            num_rows=self.num_rows,
            needs_reset=self.needs_reset,
            memory=self._selection.saved_memory(),
            weights=None if self._weights is None else replace(self._weights.state),
            older=None if self._older is None else self._older.get_state(),
            episodes=self._episodes.get_state() if continues else None,
            is_stored=continues and self._token.is_stored(self.rollout_buffer, self.buffer),
        )

    def check_state(self, state: CollectorState) -> None:
        """Check a state; envs that cannot be brought there will start a new episode, with a warning."""
        self.open()
        check_generator("collector.generator", self.generator, state.generator)
        self._selection.check_memory(state.memory, self.exploration)
        self.adapter.check_state(state.adapter)
        self._episodes.check_state(state.episodes)
        if self._older is not None:
            self._older.check_state(state.older)

    def set_state(self, state: CollectorState) -> None:
        """Take over a state; the next collection continues the episodes."""
        set_generator(self.generator, state.generator)
        self.num_rows, self.needs_reset = state.num_rows, state.needs_reset
        self._token = TrajectoryToken(state.is_stored)
        self._episodes.set_state(state.episodes)
        self._selection.set_memory(state.memory, self.exploration)
        self.adapter.set_state(state.adapter)
        if self._weights is not None:
            self._weights.load(state.weights or SyncState())
        if self._older is not None:
            self._older.set_state(state.older)

    @property
    def num_env_restarts(self) -> int:
        """The envs that failed so far and were restarted."""
        return getattr(self.envs.unwrapped, "num_restarts", 0) if self._is_open else 0

    def shares_an_env(self, other: DataSource) -> bool:
        """Return whether a step or reset of the one would move the other, however the envs are wrapped."""
        return isinstance(other, Collector) and share_an_env(self.envs, other.envs)

    def record_episodes(self, folder: str | Path) -> EpisodeWriter:
        """Record all episodes that end from now on into files of a folder."""
        self.open()
        return self.adapter.record_episodes(folder)

    def close(self) -> None:
        """Close the envs; never raises."""
        (self.adapter if self._is_open else self.envs).close()

    def _resume(self) -> None:
        # Bring the envs to where they were when the loaded state was saved.
        lost = self.adapter.resume(self._episodes.running.returns)
        self._episodes.forget(lost)
        self._selection.forget(lost)
        self._token.join(self.rollout_buffer, self.buffer, self.adapter.obs, lost)

    def _run_tensors(self, num_rows: int | None) -> bool:
        """Collect from envs of tensors without an object per step; False if that is not possible here."""
        tensors, buffer = self._tensors, self.rollout_buffer
        if tensors is None or num_rows is None or buffer is None:
            return False
        rows = tensors.collect(num_rows, self._selection, self.generator, self.num_rows)
        if rows is None:
            return False
        self.num_rows += num_rows
        ended = self._episodes.add_rows(rows["reward"], rows["terminated"] | rows["truncated"])
        self.adapter.moved(tensors.obs, num_rows, ended)
        buffer.take(tensors.fields_of_rollout(rows, self.keeps_env_action, ended))
        return True

    @torch.no_grad()
    def _step_envs(
        self,
        num_rows: int | None,
        generator: torch.Generator,
        selection: ActionSelection,
        episodes: EpisodeCounter,
        checker: FaultChecker,
        buffer: RolloutBuffer | None,
    ) -> None:
        """Take so many steps in all envs, or complete the episodes, and write them into a buffer."""
        adapter, first = self.adapter, self.num_rows
        keeps_env_action = self.keeps_env_action and buffer is self.rollout_buffer
        stores_env_action = keeps_env_action or not adapter.to_env.clips_samples
        stop, must_look = None if num_rows is None else first + num_rows, buffer is None
        while not episodes.is_complete if stop is None else self.num_rows < stop:
            if must_look:
                check_obs(adapter.obs, episodes.open, self.num_rows, is_first=True)
            if self.policy.has_mask:
                checker.check_masks(self.num_rows)
            try:
                decision = selection.decide(adapter.obs_tensor, generator)
                env_action = adapter.to_env(decision.action)
            except NonFiniteError as error:
                raise_choice_fault(error, self.policy, adapter.obs, self.num_rows)
            self.num_rows += 1
            step = adapter.step(env_action, self._limit)
            counted = episodes.add(to_array(step.reward), step.finished, step.valid)
            if buffer is not None:
                require_one_agent(step.reward)
                # An array costs the buffer a tenth of the time of a tensor.
                stored = env_action if stores_env_action else to_array(decision.action)
                extra = selection.extra(decision) if selection.columns else None
                end = step.terminated, step.truncated
                buffer.add(adapter.obs, stored, step.reward, step.next_obs, *end, counted, extra)
            else:
                checker.check_row(step, env_action, counted, self.num_rows)
                must_look = step.finished is not None
            starting = adapter.advance(episodes.wanted)
            if starting is not None:
                selection.forget(starting)
            if stop is None:
                checker.warn_of_long_episode(self.num_rows - first)

    def _store(self, process: Process | None) -> None:
        """Check the rollout, and store it in the replay buffer, if there is one."""
        rollout_buffer, buffer = self.rollout_buffer, self.buffer
        if rollout_buffer is None:
            return
        self._checker.check_collected(rollout_buffer, holds_samples=not isinstance(buffer, ReplayBuffer))
        if process is not None:
            self._processed = processed(process, rollout_buffer.rollout())
        if not isinstance(buffer, ReplayBuffer):
            return
        row = rollout_buffer.single_row() if process is None else None
        try:
            if row is not None:
                buffer.add(*row, token=self._token)
            else:
                buffer.add_rollout(self.rollout(), token=self._token)
        except SpaceError:
            self._checker.name_fault(rollout_buffer)  # by env and step
            raise


Buffer = ReplayBuffer | RolloutBuffer


def require_collector(owner: str, source: DataSource) -> Collector:
    """Return a source that can take a part of its envs; a `ParamsError` about `owner` for a source of another class."""
    if isinstance(source, Collector) and source.has_parts:
        return source
    params, _, field = owner.rpartition(".")
    hint = "Start the program without torchrun, as one process, or write rl.Collector(policy, rl.make_vec(...))."
    raise ParamsError.about(params, field, "must be a Collector in a run of several shards", source, hint)


class TrajectoryToken:
    """Identifies the steps between two resets of all envs. A new token starts new trajectories."""

    def __init__(self, is_loaded: bool = False) -> None:
        self.is_loaded = is_loaded  # it continues one with its last steps in loaded buffers

    def is_stored(self, *buffers: Buffer | None) -> bool:
        """Return whether all of these buffers, at least one, end where the envs are."""
        found = [buffer.is_of(self) for buffer in buffers if buffer is not None]
        return self.is_loaded or (bool(found) and all(found))

    def join(self, rollout_buffer: RolloutBuffer | None, buffer: Buffer | None, obs: Tree, lost: Array) -> None:
        """Let loaded buffers continue with envs at `obs` [N, ...], but for the envs that lost their episode [K]."""
        if self.is_loaded and rollout_buffer is not None:
            rollout_buffer.resume(self, lost)
            if isinstance(buffer, ReplayBuffer):
                buffer.resume(self, obs)
                buffer.end_trajectory(np.isin(np.arange(buffer.num_envs), lost))
        self.is_loaded = False
