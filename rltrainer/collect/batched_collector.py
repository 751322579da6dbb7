"""The batched collector: the policy decides for the envs that are ready, and none waits for the slowest one."""

import dataclasses
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

from rltrainer.collect.collector import Collector, CollectorState
from rltrainer.collect.episode_counter import EpisodeCounter
from rltrainer.collect.episode_infos import InfoReader, checked_keys
from rltrainer.collect.faults import FaultChecker, check_obs
from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.envs import EnvStep
from rltrainer.envs.adapter.episode_clock import Rows
from rltrainer.envs.adapter.observations import take_rows
from rltrainer.envs.deferred_envs import opened
from rltrainer.envs.stream_adapter import StreamAdapter
from rltrainer.errors import CheckpointError, EnvError, NonFiniteError, ParamsError
from rltrainer.interval import Every
from rltrainer.nets import Exploration, Policy
from rltrainer.state.params import Params
from rltrainer.tree import map_tree, to_array
from rltrainer.validation.field_rules import NonNegativeFloat, NonNegativeInt, PositiveInt, checked, instance_of

# Episodes that a collection by episodes drops before it gives up, if there is no other.
MAX_SHORT_EPISODES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class InferenceParams(Params):
    """Sizes of batches and waiting times of batched inference; a `ParamsError` if two contradict each other.

    A batch starts as soon as `min_batch_size` envs wait for an action, or, if `max_wait_time` is set and later, when
    the first of them has waited so long; and at once when it cannot become larger.
    """

    min_batch_size: PositiveInt = 1
    """Envs that a batch waits for; fewer if fewer are left to act."""
    max_batch_size: PositiveInt | None = None
    """Envs of a batch at most; None takes all that wait."""
    max_wait_time: NonNegativeFloat | None = None
    """Seconds from when its first env began to wait; None does not wait for more than the minimum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_batch_size is not None and self.max_batch_size < self.min_batch_size:
            self.raise_invalid("max_batch_size", f"must be at least min_batch_size={self.min_batch_size}")


class EnvQueue:
    """The envs that wait for an action, the longest waiting first. Times are the caller's, in seconds."""

    def __init__(self, params: InferenceParams) -> None:
        self._params = params
        self._waiting: deque[tuple[int, float]] = deque()

    def add(self, envs: Iterable[int], now: float) -> None:
        """Let envs wait from now on."""
        self._waiting.extend((env, now) for env in envs)

    def take(self, num_live: int, now: float) -> list[int]:
        """Return the envs of a batch that starts now, if any; `num_live` could be in it, the busy ones included."""
        size, most = len(self._waiting), self._most(num_live)
        if size < most and self.seconds_left(num_live, now) != 0.0:
            return []
        return [self._waiting.popleft()[0] for _ in range(min(size, most))]

    def seconds_left(self, num_live: int, now: float) -> float | None:
        """Return when a batch will start if no other env comes; None if it will not."""
        size, most, params = len(self._waiting), self._most(num_live), self._params
        if min(size, most) == 0 or size < min(params.min_batch_size, most):
            return None
        if size >= most or params.max_wait_time is None:
            return 0.0
        return max(self._waiting[0][1] + params.max_wait_time - now, 0.0)

    def _most(self, num_live: int) -> int:
        """Return the size at which waiting for more is of no use."""
        return num_live if self._params.max_batch_size is None else min(self._params.max_batch_size, num_live)


@dataclasses.dataclass
class StreamState:
    """The steps that each env has taken, for errors, and the episodes that were too short."""

    num_steps: list[NonNegativeInt]
    num_dropped: NonNegativeInt


@dataclasses.dataclass(kw_only=True)
class BatchedState(CollectorState):
    """State of a batched collector."""

    streams: StreamState


AnyInference = Annotated[InferenceParams, instance_of(InferenceParams)]


class BatchedCollector(Collector):
    """Steps each env in a process of its own, and lets the policy decide in this one for the envs that are ready.

    A `Collector` steps all envs together, so that each step takes as long as the slowest env. Here an env gets its next
    action with the next batch after it has answered (`InferenceParams`), and starts its next episode by itself.

    All envs together take as many steps as were asked for, some more than others; a rollout is filled up with steps
    that are not valid. A collection into a `ReplayBuffer` does not wait for steps that are under way when it has
    enough: they belong to the next one. A rollout for on-policy training does: the same weights chose all of it.

    The transitions of an env depend on its seed and its actions only; how many steps it takes depends on its speed.

    Args:
        policy, buffer, exploration, device, sync_every, info_keys: see `Collector`.
        envs: `make_vec(..., num_envs=n, backend="workers", num_workers=n)`.
        inference: which envs the policy decides for, and when; None takes the defaults.
        min_trajectory_length: shorter episodes are neither stored nor counted. On policy, the steps of an episode that
            is still shorter when a rollout ends are left out of it.
        max_trajectory_length: an episode that gets as long is truncated; None lets the envs end them.

    Raises:
        SpaceError, ParamsError: see `Collector`; or the envs cannot be stepped each by itself.
    """

    state_class, adapter_class = BatchedState, StreamAdapter
    varies_in_length: ClassVar[bool] = True
    has_parts: ClassVar[bool] = False
    adapter: StreamAdapter

    def __init__(
        self,
        policy: Policy,
        envs: gym.vector.VectorEnv[Any, Any, Any],
        buffer: ReplayBuffer | RolloutBuffer | None = None,
        exploration: Exploration | None = None,
        *,
        inference: InferenceParams | None = None,
        min_trajectory_length: int = 1,
        max_trajectory_length: int | None = None,
        device: torch.device | str | None = None,
        sync_every: Every | None = None,
        info_keys: Sequence[str] = (),
    ) -> None:
        name = "BatchedCollector"
        inference = checked(name, "inference", inference, AnyInference | None)
        shortest = checked(name, "min_trajectory_length", min_trajectory_length, PositiveInt)
        longest = checked(name, "max_trajectory_length", max_trajectory_length, PositiveInt | None)
        if longest is not None and longest < shortest:
            text = f"must be at least min_trajectory_length={shortest}"
            raise ParamsError.about(name, "max_trajectory_length", text, longest)
        self.inference = inference or InferenceParams()
        self.min_trajectory_length, self.max_trajectory_length = shortest, longest
        keys = checked_keys(name, info_keys)
        # The steps under way [N, ...]: actions as they are stored, and further columns.
        self._action: Any = None
        self._extra: dict[str, torch.Tensor] = {}
        super().__init__(policy, opened(envs), buffer, exploration, device=device, sync_every=sync_every)
        self._waiting = EnvQueue(self.inference)
        # The first steps of each env's episode, stored once it has `min_trajectory_length`, dropped if it ends before.
        self._queued: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
        reader = InfoReader(self.adapter.last_info, keys) if keys else None
        self._episodes = EpisodeCounter(self.num_envs, shortest, reader)
        self._checker = FaultChecker(self.adapter, self._episodes, "BatchedCollector(..., max_trajectory_length=...)")

    @property
    def num_dropped_episodes(self) -> int:
        """The episodes so far that were shorter than `min_trajectory_length`."""
        return self._episodes.num_dropped

    def settings(self) -> dict[str, float]:
        """Return its numbers for the log."""
        return {"num_dropped_episodes": self.num_dropped_episodes} if self.min_trajectory_length > 1 else {}

    def attach_buffer(self, buffer: ReplayBuffer | RolloutBuffer) -> None:
        """Write into this buffer from now on; see `Collector.attach_buffer`."""
        super().attach_buffer(buffer)
        # Steps that are under way have no place in this one.
        self._action, self._extra, self.needs_reset = None, {}, True

    def get_state(self) -> BatchedState:
        """Return the state; steps that are under way are not part of it, and do not count."""
        streams = StreamState(self.adapter.num_steps.tolist(), self._episodes.num_dropped)
        return BatchedState(**vars(super().get_state()), streams=streams)

    def check_state(self, state: BatchedState) -> None:  # type: ignore[override]  # of `state_class`
        """Check a state; see `Collector.check_state`, for errors too."""
        if len(state.streams.num_steps) != self.num_envs:
            text = f"expected the steps of {self.num_envs} envs, found those of {len(state.streams.num_steps)}"
            raise CheckpointError(f"collector.streams.num_steps: {text}")
        super().check_state(state)

    def set_state(self, state: BatchedState) -> None:  # type: ignore[override]  # of `state_class`
        """Take over a state; see `Collector.set_state`."""
        super().set_state(state)
        self._queued.clear()
        self._waiting = EnvQueue(self.inference)
        self.adapter.num_steps[:] = state.streams.num_steps
        self._episodes.num_dropped = state.streams.num_dropped

    @torch.no_grad()
    def _step_envs(self, num_rows: int | None, *parts: Any) -> None:
        """Let envs act until as many steps are received, or the episodes are complete."""
        adapter, episodes, checker = self.adapter, self._episodes, self._checker
        num_left, is_replay = (num_rows or 0) * self.num_envs, isinstance(self.buffer, ReplayBuffer)
        # A rollout is of one policy: no more steps are sent than it takes, and none are left from the last one.
        is_limited = num_rows is not None and not is_replay
        num_dropped, num_answers = episodes.num_dropped, 0
        if adapter.is_fresh:
            self._waiting = EnvQueue(self.inference)
        if adapter.is_fresh or not is_replay:
            self._queued.clear()
        waiting = self._waiting
        # The first steps that are stored of each env are the queued ones.
        num_queued = np.array([len(self._queued[n]) for n in range(self.num_envs)])
        checker.begin(adapter.num_steps - num_queued, adapter.num_steps)
        try:
            while not episodes.is_complete if num_rows is None else num_left > 0:
                num_live = self._advance()
                num_live = min(num_live, num_left - adapter.num_sent) if is_limited else num_live
                # Sorted: a batch of all envs gets the same noise whichever of them answered first.
                while envs := sorted(waiting.take(num_live, time.monotonic())):
                    self._act(np.array(envs))
                    num_live -= len(envs) if is_limited else 0
                timeout = waiting.seconds_left(num_live, time.monotonic())
                most = self.num_envs if num_rows is None else num_left
                step = adapter.receive(timeout, most, self.max_trajectory_length)
                if step is not None:
                    num_left -= len(adapter.stepped)
                    num_answers += 1
                    self._take_in(step)
                if num_rows is None:
                    num_short = episodes.num_dropped - num_dropped
                    if num_short >= MAX_SHORT_EPISODES and not len(episodes.lengths):
                        text = f"{num_short} episodes, and no other, were shorter than min_trajectory_length="
                        raise EnvError(f"BatchedCollector.collect: {text}{self.min_trajectory_length}")
                    checker.warn_of_long_episode(num_answers)
            self._advance()
            self.num_rows += num_rows or 0
        finally:
            if self.rollout_buffer is not None:
                self.rollout_buffer.pad(adapter.obs)
                episodes.num_valid = len(self.rollout_buffer)

    def _advance(self) -> int:
        # Queue envs that have answered, or let them start an episode; return how many are still to act.
        adapter, is_open = self.adapter, self._episodes.open
        if (begun := adapter.advance_ready(is_open)) is not None:
            self._selection.forget(begun)
            if self.rollout_buffer is None:
                check_obs(adapter.obs, np.isin(np.arange(self.num_envs), begun), adapter.num_steps, is_first=True)
        waiting = adapter.waiting if is_open is None else adapter.waiting[is_open[adapter.waiting]]
        self._waiting.add(waiting.tolist(), time.monotonic())
        return self.num_envs if is_open is None else int(is_open.sum())

    def _act(self, envs: Rows) -> None:
        # Decide for envs [K], and let them take the step.
        adapter, selection = self.adapter, self._selection
        if self.policy.has_mask:
            self._checker.check_masks(adapter.num_steps, envs)
        rows = torch.from_numpy(envs).to(adapter.device)
        try:
            decision = selection.decide(map_tree(lambda leaf: leaf[rows], adapter.obs_tensor), self.generator, rows)
            env_action = adapter.convert(decision.action)
        except NonFiniteError as error:
            name = type(self.policy).__name__
            raise NonFiniteError(f"{name}, in a batch of the envs {envs.tolist()}: {error}") from error
        is_sample = isinstance(self.buffer, RolloutBuffer) and adapter.to_env.clips_samples
        stored = to_array(decision.action) if is_sample else env_action
        if self._action is None:
            self._action = np.zeros((self.num_envs, *stored.shape[1:]), stored.dtype)
        self._action[envs] = stored
        for name, column in (selection.extra(decision) if selection.columns else {}).items():
            if name not in self._extra:
                self._extra[name] = column.new_zeros((self.num_envs, *column.shape[1:]))
            self._extra[name][envs] = column
        adapter.send(envs, env_action)

    def _take_in(self, step: EnvStep) -> None:
        """Count and store the steps that were received."""
        adapter, buffer, shortest = self.adapter, self.rollout_buffer, self.min_trajectory_length
        envs = adapter.stepped
        before = self._episodes.running.lengths[envs] if shortest > 1 else None
        counted = self._episodes.add(step.reward, step.finished, step.valid)
        assert counted is not None, "a stream says which envs it is of"
        if buffer is None:
            self._checker.check_row(step, self._action, counted, adapter.num_steps)
            return
        terminated, truncated, valid = step.terminated[envs], step.truncated[envs], counted[envs]
        obs, next_obs = take_rows(adapter.obs, envs), take_rows(step.next_obs, envs)
        extra = {name: self._extra[name][envs] for name in self._selection.columns}
        stored = obs, self._action[envs], step.reward[envs], next_obs, terminated, truncated, extra
        if before is None:
            buffer.add_steps(envs, stored, valid)
            return
        lengths, done = before + valid, terminated | truncated
        for k, env in enumerate(envs.tolist()):
            queued = self._queued[env]
            queued.append(map_tree(lambda leaf, k=k: leaf[k : k + 1], (stored, valid)))
            if lengths[k] >= shortest:
                for each in queued:
                    buffer.add_steps(envs[k : k + 1], *each)
            if lengths[k] >= shortest or done[k]:
                queued.clear()
