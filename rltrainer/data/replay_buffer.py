"""The replay buffer: the data of off-policy and offline algorithms."""

import dataclasses
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.data.buffer_description import BufferDescription, describe, stored_episodes
from rltrainer.data.buffer_state import (
    FILE_KIND,
    BufferLayout,
    BufferState,
    ExtraColumn,
    OfflineState,
    RowLog,
    SamplingState,
    all_rows,
    decoded,
    prepare_ring,
    read_buffer,
    ring_state,
)
from rltrainer.data.ended_trajectories import ReturnsToGo
from rltrainer.data.memory_forecast import check_fits
from rltrainer.data.ring import Ring
from rltrainer.data.sampler import Sampler
from rltrainer.data.storage import Array, Extra, FrameStack, column_specs, require_extra, slot_nbytes
from rltrainer.data.transition_sources import CHUNK_SIZE, append, transitions_from_arrays
from rltrainer.device import require_device
from rltrainer.errors import CheckpointError, NonFiniteError, ParamsError, ReplayBufferError, SpaceError
from rltrainer.files.atomic_write import write_errors
from rltrainer.plan import no_progress
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.seeding import check_generator, derive_seed, make_generator, reseed, set_generator
from rltrainer.state.codec import from_state, to_state
from rltrainer.state.state_file import write_state
from rltrainer.tree import Tree, named_leaves
from rltrainer.types import Load, Rollout, Sequences, State, Transitions
from rltrainer.validation.field_rules import AnyPath, NonNegativeInt, PositiveInt, UnitFloat, checked
from rltrainer.validation.suggestions import explains_arguments

MAX_NUM_BATCHES, MAX_SAMPLE_NBYTES = 32, 2**26
"""Batches, and bytes of them, that trainers sample at once: more would gain nothing, and priorities would be stale."""


class BufferOptions(TypedDict, total=False):
    """Arguments that subclasses hand on to `ReplayBuffer`, which explains them."""

    device: torch.device | str
    seed: int | None
    extra: Extra | None
    frame_stack: int | None


class ReplayBuffer:
    """Stores the newest transitions of `num_envs` envs and samples them uniformly, or as `sampler` draws them.

    Each observation is stored once.

    Args:
        capacity: transitions in all; rounded up to a multiple of `num_envs`.
        observation_space, action_space: of one env.
        num_envs: N.
        device: of the data and of the samples.
        seed: of the sampling; wins over the trainer's.
        extra: further columns, from their name to (shape, dtype) of one transition.
        frame_stack: k, where an observation is k frames, as `gymnasium.wrappers.FrameStackObservation` makes it; each
            frame is stored once, and at the start of a trajectory its first one is repeated. A full buffer does not
            sample each env's k - 1 oldest transitions, as frames of their stacks are gone. None stores observations
            as they are. Observations that are no such stacks are a `ParamsError` when the first ones are stored.

    Raises:
        ParamsError: a value breaks its rule.
        SpaceError: a space cannot be stored.
        ReplayBufferError: the buffer would not fit into memory.
    """

    sampler_nbytes: ClassVar[int] = 0
    saving_nbytes: ClassVar[int] = 0
    """Bytes per transition of the sampler, and further bytes that saving takes for a moment."""
    _state_class: ClassVar[type[BufferState]] = BufferState
    _returns: ReturnsToGo | None = None  # once they were asked for

    @explains_arguments
    def __init__(
        self,
        capacity: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        extra: Extra | None = None,
        *,
        frame_stack: int | None = None,
    ) -> None:
        owner = type(self).__name__
        frames = None if frame_stack is None else FrameStack(owner, observation_space, frame_stack)
        num_envs = checked(owner, "num_envs", num_envs, PositiveInt)
        capacity = checked(owner, "capacity", capacity, PositiveInt)
        if capacity < num_envs * (frame_stack or 1):
            times = "" if frame_stack is None else f" times frame_stack={frame_stack}"
            raise ParamsError.about(owner, "capacity", f"must be at least num_envs={num_envs}{times}", capacity)
        env_capacity = -(-capacity // num_envs)
        self.capacity, self.num_envs, self.extra = env_capacity * num_envs, num_envs, require_extra(owner, extra)
        self.device = require_device(owner, device)
        self.observation_space, self.action_space = observation_space, action_space
        self._layout = BufferLayout(
            observation_space=observation_space,
            action_space=action_space,
            capacity=self.capacity,
            num_envs=num_envs,
            extra={name: ExtraColumn.of(*declared) for name, declared in self.extra.items()},
            frame_stack=frames.num_frames if frames else None,
        )
        specs = column_specs(owner, frames.space if frames else observation_space, action_space, self.extra)
        self._nbytes = slot_nbytes(specs) + 4 + self.sampler_nbytes  # of a transition; 4: of the final observations
        needed = self.forecast_nbytes(capacity, num_envs=num_envs, **self._layout.arguments())
        check_fits(owner, "capacity", capacity, needed, self.device)
        self._ring = Ring(owner, specs, env_capacity, num_envs, self.device, frames)
        seed = checked(owner, "seed", seed, NonNegativeInt | None)
        self.generator, self._has_own_seed = make_generator(seed, self.device), seed is not None
        self.follow(no_progress, ALONE)
        self._root_seed: int | None = None  # of the parts' own seeds, once it is a part

    def check_part(self) -> None:
        """Raise a `ReplayBufferError` if the buffer holds data, and a `ParamsError` if its sampler has a fixed size."""
        owner, ring = type(self).__name__, self._ring
        if len(ring):
            text = f"must be empty before a run of several shards; it holds {len(ring)} transitions"
            raise ReplayBufferError(f"{owner}: {text}. The offline part of a MixedBuffer may hold some.")
        if ring.sampler is not None and getattr(ring.sampler, "of_size", None) is None:
            rule = "must have a method `of_size(num_slots)`, which returns a new one, in a run of several shards"
            raise ParamsError.about(owner, "sampler", rule, ring.sampler)

    def rings(self) -> Iterator[object]:
        """Yield the memory that `take_part` replaces: copies that are about to take a part may share it."""
        yield self._ring

    def take_part(self, index: int, *, num_envs: int) -> None:
        """Become the part with this index and so many envs of the same capacity each; for errors see `check_part`."""
        self.check_part()
        ring, new_sampler = self._ring, getattr(self.sampler, "of_size", None)
        make = partial(Ring, type(self).__name__, ring.specs, ring.env_capacity, num_envs, self.device, ring.frames)
        self.capacity, self.num_envs = ring.env_capacity * num_envs, num_envs
        del ring, self._ring  # frees its memory first, unless copies share it
        self._ring = make()
        self._ring.sampler = new_sampler and new_sampler(self.num_slots)
        self._layout = dataclasses.replace(self._layout, capacity=self.capacity, num_envs=num_envs)
        self._seed_part(index)

    def _seed_part(self, index: int) -> None:
        if self._has_own_seed:
            self._root_seed = self.generator.initial_seed() if self._root_seed is None else self._root_seed
            self.generator.manual_seed(derive_seed(self._root_seed, "shard", index))

    @classmethod
    def forecast_nbytes(
        cls,
        capacity: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int = 1,
        extra: Extra | None = None,
        *,
        frame_stack: int | None = None,
    ) -> int:
        """Return the bytes of memory that a buffer of these arguments needs, saving too; errors as of the class."""
        owner = cls.__name__
        space = observation_space if frame_stack is None else FrameStack(owner, observation_space, frame_stack).space
        of_slot = slot_nbytes(column_specs(owner, space, action_space, require_extra(owner, extra)))
        capacity = checked(owner, "capacity", capacity, PositiveInt)
        num_envs = checked(owner, "num_envs", num_envs, PositiveInt)
        num_slots = (-(-capacity // num_envs) + 1) * num_envs
        return num_slots * (of_slot + 4 + cls.sampler_nbytes + cls.saving_nbytes)

    @property
    def sampler(self) -> Sampler | None:
        """Draws the transitions of a batch; None draws them uniformly. Set it in the constructor of a subclass."""
        return self._ring.sampler

    @sampler.setter
    def sampler(self, sampler: Sampler | None) -> None:
        if len(self):
            rule, hint = "must be set before anything is stored", "Set it in the constructor of your buffer."
            raise ReplayBufferError.about("ReplayBuffer", "sampler", rule, sampler, hint)
        self._ring.sampler = sampler

    @property
    def num_slots(self) -> int:
        """The number of slots; they are numbered from 0, and a few of them are always empty."""
        return self._ring.num_slots

    @property
    def nbytes(self) -> int:
        """Bytes reserved for the data."""
        return self._ring.nbytes

    def __len__(self) -> int:
        """Return how many transitions it holds."""
        return len(self._ring)

    def add(
        self, obs: Tree, action: Any, reward: Any, next_obs: Tree, terminated: Any, truncated: Any,
        extra: dict[str, Any] | None = None, *, token: object | None = None,
    ) -> None:  # fmt: skip
        """Store one step of all envs; each leaf is an array or tensor [N, ...].

        If the step before did not end its episode, `obs` is its `next_obs`; else call `end_trajectory` first.

        Args:
            obs, action, reward, terminated, truncated: as the envs received and returned them.
            next_obs: the true successors, also where an episode ended.
            extra: all declared extras; None if none are declared.
            token: identifies an unbroken run of the envs; any object, compared by `is`. A step with the token of the
                step before continues its trajectories, and `obs` is not stored again, as it is the last `next_obs`. A
                step with another token starts new trajectories. Steps without a token continue each other.

        Raises:
            ReplayBufferError: a leaf is missing, or has another shape or kind of number; nothing is stored.
            SpaceError: an action lies outside its space; nothing is stored.
        """
        ring = self._ring
        if token is not ring.token:
            ring.continue_with(token)
        ring.write(ring.add, obs, action, reward, next_obs, terminated, truncated, extra)

    def add_rollout(self, rollout: Rollout, *, token: object | None = None) -> None:
        """Store the valid steps of a rollout [T, N]; for errors see `add`.

        An env's trajectory continues if the rollout starts with the successor of its last stored step, has the same
        `token`, does not say that the env starts there, and `end_trajectory` was not called.
        """
        self._ring.write(self._ring.add_rollout, rollout, token)

    def end_trajectory(self, envs: Array | None = None) -> None:
        """End the trajectories of some envs [N] bool, or of all: the next step does not continue the last one."""
        self._ring.end_trajectory(envs)

    def is_of(self, token: object) -> bool:
        """Return whether the last step has this token."""
        return token is self._ring.token

    def resume(self, token: object, obs: Tree) -> None:
        """Continue a loaded run; where `obs` [N, ...] is not the last successor, the trajectory ends."""
        self._ring.resume(token, obs)

    def follow(self, progress: Callable[[], float], ranks: Ranks) -> None:
        """Take schedules from the share of a run that is done; `ranks` draw the parts of one batch together."""
        self._progress, self._ranks = progress, ranks

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the way back to a trainer."""
        return vars(self) | {"_progress": no_progress, "_ranks": ALONE, "_returns": None}

    def sample(
        self, batch_size: int, *, n_step: int = 1, gamma: float = 0.99, num_batches: int | None = None,
        return_to_go: bool = False,
    ) -> Transitions:  # fmt: skip
        """Draw transitions [B], or [K, B]; uniformly and with replacement unless there is a `sampler`.

        Args:
            batch_size: B, how many.
            n_step: steps that `reward` sums up; fewer at the end of a trajectory, or of the stored data.
            gamma: discount of one step, in [0, 1].
            num_batches: K, for K gradient steps: the same as that many calls; None draws one batch.
            return_to_go: add to `extra` the discounted return from each transition on, `return_to_go` [B]: -inf while
                the trajectory runs. Behind a time limit, its last reward goes on for ever.

        Raises:
            ReplayBufferError: the buffer is empty, a value breaks its rule, or goals in hindsight change the rewards.
        """
        shape, n_step, gamma = self._sample_shape("ReplayBuffer.sample", 1, batch_size, n_step, gamma, num_batches)
        slots, weight = self._draw(shape)
        batch = self._transitions(slots.flatten(), n_step, gamma)
        if return_to_go:
            batch.extra = batch.extra | {"return_to_go": self._returns_to_go(gamma).of(slots.flatten())}
        batch = batch if num_batches is None else batch.reshape(*shape)
        if weight is not None:
            batch.weight = weight
        return batch

    @property
    def can_be_recorded(self) -> bool:
        """Return whether a CUDA graph may hold `sample` and `update_priorities`; call `refresh` before each replay."""
        # Only for classes that are known to take no number from the host: `HindsightReplayBuffer` asks the user's
        # functions for arrays, `MixedBuffer` splits a batch by how much is stored, and a subclass may do anything.
        return type(self) is ReplayBuffer and self.sampler is None

    @property
    def sampler_tensors(self) -> list[Tensor]:
        """The tensors that `update_priorities` changes, of any shape."""
        return list(getattr(self.sampler, "tensors", ()))

    def refresh(self) -> tuple[Hashable, ...]:
        """Bring the numbers on the device up to date that a recorded sample reads; return where the data lies."""
        if self._returns is not None:
            self._returns.catch_up()
        return *self._ring.refresh(), self._returns

    def _returns_to_go(self, gamma: float) -> ReturnsToGo:
        found = self._returns
        if found is None or found.ring is not self._ring or found.gamma != gamma:
            self._returns = found = ReturnsToGo(self._ring, gamma)
        return found

    def _draw(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        """Return slots [B] or [K, B], and their weights in a loss if they are not 1."""
        ring = self._ring
        if ring.sampler is None:
            return ring.draw(shape, self.generator), None
        return ring.sampler.draw(ring.num_drawable, shape, self._progress(), self.generator)

    def _transitions(self, slots: Tensor, n_step: int, gamma: float) -> Transitions:
        """Return the transitions that start at slots that were drawn [B]."""
        return self._ring.transitions(slots, n_step, gamma)

    def sample_sequences(
        self, batch_size: int, length: int, burn_in: int = 0, *, n_step: int = 1, gamma: float = 0.99,
        num_batches: int | None = None,
    ) -> Sequences:  # fmt: skip
        """Draw sequences [burn_in + length, B], or [K, burn_in + length, B].

        Each starts its training at a transition that is drawn as `sample` draws it, after a burn-in of the transitions
        before, all within its trajectory. Weights are 0 in the burn-in and beyond the trajectory's ends. A
        `ReplayBufferError` as in `sample`, also for sequences longer than the transitions that an env keeps.
        """
        owner, limit = "ReplayBuffer.sample_sequences", self._ring.env_capacity
        length = checked(owner, "length", length, PositiveInt, ReplayBufferError)
        burn_in = checked(owner, "burn_in", burn_in, NonNegativeInt, ReplayBufferError)
        if length + burn_in > limit:
            rule = f"must with burn_in={burn_in} be at most the {limit} transitions that each env keeps"
            raise ReplayBufferError.about(owner, "length", rule, length, "Give the buffer more capacity.")
        shape, n_step, gamma = self._sample_shape(owner, burn_in + length, batch_size, n_step, gamma, num_batches)
        return self._ring.sequences(*self._draw(shape), length, burn_in, n_step, gamma)

    def _sample_shape(
        self, owner: str, length: int, batch_size: int, n_step: int, gamma: float, num_batches: int | None
    ) -> tuple[tuple[int, ...], int, float]:
        """Check the arguments of a sample; return (B,) or (K, B), `n_step` and `gamma`."""
        # Most calls pass this test, which takes 5 us less than the rules below.
        are_right = type(batch_size) is type(n_step) is int and type(gamma) is float
        if not (are_right and batch_size > 0 and n_step > 0 and 0 <= gamma <= 1 and num_batches is None):
            batch_size = checked(owner, "batch_size", batch_size, PositiveInt, ReplayBufferError)
            n_step = checked(owner, "n_step", n_step, PositiveInt, ReplayBufferError)
            gamma = checked(owner, "gamma", gamma, UnitFloat, ReplayBufferError)
            num_batches = checked(owner, "num_batches", num_batches, PositiveInt | None, ReplayBufferError)
        if not self._ring.written.any():
            raise ReplayBufferError(f"{owner}: the buffer is empty. Collect or load transitions first.")
        size = batch_size * (num_batches or 1)
        if size > self.num_slots:
            check_fits(owner, "batch_size", batch_size, 2 * size * length * self._nbytes, self.device)
        return (batch_size,) if num_batches is None else (num_batches, batch_size), n_step, gamma

    def max_num_batches(self, batch_size: int) -> int:
        """Return how many batches are sampled at once at most: their memory stays small beside the data."""
        return min(max(MAX_SAMPLE_NBYTES // (2 * batch_size * self._nbytes), 1), MAX_NUM_BATCHES)

    def update_priorities(self, index: Tensor, td_error: Tensor | None) -> None:
        """Report the errors of predictions to the sampler, if there is one; both are [B] or [K, B]."""
        sampler = self._ring.sampler
        if sampler is not None and td_error is not None:
            slots, errors = index.to(self.device), td_error.detach().to(self.device)
            # The newest error of a transition that is in several of K batches counts.
            for batch in zip(slots, errors, strict=True) if slots.dim() > 1 else ((slots, errors),):
                sampler.update(*batch)

    def observations(self, chunk_size: int = CHUNK_SIZE) -> Iterator[Tree]:
        """Yield the observations of all transitions as trees [chunk, ...], for statistics."""
        yield from map(self._ring.observations, self._ring.all_slots(chunk_size))

    def initial_observations(self) -> Tree:
        """Return the first observations of all trajectories, but of those with their start overwritten, [E, ...]."""
        found = stored_episodes(self._ring)
        first = found.slots[np.flatnonzero(found.last) + 1 - found.length][found.is_whole]
        return self._ring.observations(self._ring.on_device(first))

    def describe(self, reference_scores: tuple[float, float] | None = None) -> BufferDescription:
        """Return a description to be printed; `reference_scores` are the returns that score 0 and 1."""
        return describe(self._ring, self.action_space, reference_scores)

    def longest_trajectory(self) -> int:
        """Return the transitions of the longest trajectory; 0 without any."""
        return int(stored_episodes(self._ring).length.max(initial=0))

    def check_finite(self) -> None:
        """Raise a `NonFiniteError` that names leaf and `index` of the first transition with NaN or infinity."""
        for slots in self._ring.all_slots(CHUNK_SIZE):
            batch = self._ring.transitions(slots, 1, 1.0)
            for name in ("obs", "action", "reward", "next_obs"):
                for path, leaf in named_leaves(getattr(batch, name), name):
                    bad = (~torch.isfinite(leaf)).nonzero()
                    if len(bad):
                        index, value = int(slots[bad[0, 0]]), float(leaf[tuple(bad[0])])
                        text = f"{path} = {value}. Leave it out, or replace it, before training."
                        raise NonFiniteError(f"ReplayBuffer: transition {index}: {text}")

    def clear(self) -> None:
        """Forget all transitions; memory and generator stay as they are."""
        self._ring.clear()

    def seed(self, seed: int) -> None:
        """Seed the sampling, unless the buffer was given a seed of its own."""
        if not self._has_own_seed:
            reseed(self.generator, "ReplayBuffer", seed)

    def extend(self, other: "ReplayBuffer") -> None:
        """Append the newest transitions of another buffer of the same spaces and extras; log how many do not fit.

        Its trajectories stay whole and in order, each in one env. Anything but another buffer is a `ReplayBufferError`,
        one of other spaces or extras a `SpaceError`.
        """
        if not isinstance(other, ReplayBuffer) or other is self:
            raise ReplayBufferError.about("ReplayBuffer.extend", "other", "must be another buffer", other)
        if mismatch := self._layout.mismatch(other._layout):
            raise SpaceError(f"ReplayBuffer.extend: {mismatch}")
        append(other._ring, self._ring, "ReplayBuffer.extend")

    def to(self, device: torch.device | str) -> "ReplayBuffer":
        """Return a buffer with the same data on a device, which samples uniformly; this one if it lies there.

        Raises:
            ReplayBufferError: the data would not fit into the device's memory.
        """
        if (there := require_device("ReplayBuffer.to", device)) == self.device:
            return self
        moved = ReplayBuffer(self.capacity, num_envs=self.num_envs, device=there, seed=0, **self._layout.arguments())
        moved._prepare(decoded(self._state_class, self.state_dict(), self.nbytes), is_exact=False)()
        return moved

    @classmethod
    def from_arrays(
        cls, *, observations: Tree, actions: Any, rewards: Any, terminations: Any, truncations: Any,
        next_observations: Tree | None = None, observation_space: gym.Space[Any], action_space: gym.Space[Any],
        device: torch.device | str = "cpu", seed: int | None = None,
    ) -> Self:  # fmt: skip
        """Make a buffer from logged data of one env, in time order; each leaf is an array or tensor [M, ...].

        Without `next_observations` the successor of a row is the next row. Truncated rows, and a last row that is not
        terminated, then have no known successor: they are left out, and a warning says how many.
        With them, a row ends its trajectory if its successor is not the next row.

        Raises:
            SpaceError: a value does not fit its space.
            ReplayBufferError: the arrays are empty, of unequal length, of the wrong type, or not finite.
        """
        columns = (observations, actions, rewards, terminations, truncations)
        new = transitions_from_arrays(observation_space, action_space, columns, next_observations)
        buffer = cls(len(new.env), observation_space, action_space, device=device, seed=seed)
        buffer._ring.store(new)
        buffer.end_trajectory()
        return buffer

    def state_dict(self) -> State:
        """Return the whole state; its tensors share the buffer's memory, so write or clone them before you continue."""
        return self._state(all_rows(self._ring))

    def logged_state(self) -> State:
        """Return the same for a run's checkpoint. Its rows are a `RowLog`: only new ones are written."""
        return self._state(RowLog(self._ring))

    def _state(self, rows: list[State] | RowLog) -> State:
        return {**to_state(self._layout), **ring_state(self._ring, rows), **self._sampling_state()}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned, exactly; trajectories continue. A `ReplayBufferError` changes nothing."""
        self.prepare_load(state)()

    def prepare_load(self, state: State) -> Load:
        """Check a whole state, and return the function that loads it; a `ReplayBufferError` if it does not fit."""
        try:
            found = decoded(self._state_class, state, self.nbytes)
            if mismatch := self._layout.mismatch(found, with_size=True):
                raise ReplayBufferError(mismatch)
            return self._prepare(found, is_exact=True)
        except (CheckpointError, ReplayBufferError) as error:
            raise ReplayBufferError(f"ReplayBuffer.load_state_dict: {error}") from error

    def _prepare(self, found: BufferState, is_exact: bool) -> Load:
        restore_ring = prepare_ring(self._ring, found, is_finite=is_exact)
        self._check_sampling(found, found.written, is_exact)

        def load() -> None:
            restore_ring()
            self._set_sampling(found)

        return load

    def sampling_state(self) -> State:
        """Return the state of the sampling alone, for a checkpoint of a run on data that is the user's file."""
        return {"num_transitions": len(self), **self._sampling_state()}

    def _sampling_state(self) -> State:
        ring, sampler = self._ring, self._ring.sampler
        known = {} if sampler is None else {"sampler": sampler.state_dict(ring.drawable_slots(ring.written))}
        return {"generator": self.generator.get_state(), "has_own_seed": self._has_own_seed, **known}

    def prepare_sampling(self, state: object, name: str) -> Load:
        """Check such a state, and return the function that loads it; errors start with `name`."""
        found = from_state(OfflineState, state, name)
        self._check_offline(found, name)
        return partial(self._set_sampling, found)

    def _check_offline(self, found: OfflineState, name: str) -> None:
        if found.num_transitions != len(self):
            text = f"held {found.num_transitions} transitions when it was saved, holds {len(self)} now"
            raise CheckpointError(f"{name}: {text}. A run continues on the data it began with.")
        try:
            self._check_sampling(found, self._ring.written, is_exact=True)
        except (CheckpointError, ReplayBufferError) as error:
            raise type(error)(f"{name}.{error}") from error

    def _check_sampling(self, found: SamplingState, written: Array, is_exact: bool) -> None:
        """Check a state of generator and sampler; `written` [N] transitions of each env will be stored by then.

        `is_exact`: buffer and state must both have a sampler or none. Else transitions are new to a sampler.
        """
        if self.sampler is not None and found.sampler is not None:
            try:
                self.sampler.check_state(found.sampler, self._ring.drawable_slots(written))
            except (CheckpointError, ReplayBufferError) as error:
                raise ReplayBufferError(f"sampler.{error}") from error
        elif is_exact and (self.sampler is None) != (found.sampler is None):
            text = "one of the two buffers draws uniformly, the saved one and this one, the other not"
            raise ReplayBufferError(f"sampler: {text}")
        check_generator("generator", self.generator, found.generator)

    def _set_sampling(self, found: SamplingState) -> None:
        """Take over a checked state, once the ring holds the transitions that it is of."""
        if self.sampler is not None and found.sampler is not None:
            self.sampler.set_state(found.sampler, self._ring.drawable_slots(self._ring.written))
        self._set_generator(found)

    def _set_generator(self, found: SamplingState) -> None:
        set_generator(self.generator, found.generator)
        self._has_own_seed = found.has_own_seed

    def save(self, path: str | Path) -> None:
        """Write the buffer to a file: data, never code, and only filled rows; a `ReplayBufferError` if that fails."""
        path = Path(checked("ReplayBuffer.save", "path", path, AnyPath))
        with write_errors(path, ReplayBufferError):
            # All trajectories end here: a buffer that loads the file stores the steps of other envs next.
            ended = torch.ones(self.num_envs, dtype=torch.bool)
            write_state(path, FILE_KIND, self.state_dict() | {"pending_end": ended})

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: torch.device | str = "cpu",
        capacity: int | None = None,
        num_envs: int | None = None,
    ) -> Self:
        """Read a buffer that any replay buffer's `save` wrote; the next step starts a new trajectory.

        Unless capacity, envs or class differ, it is equal in every field and in its next samples.

        Args:
            path: the file.
            device: of the data.
            capacity: another than the file's; if not all transitions fit, the newest are kept, and a warning is
                logged that says how many are left out.
            num_envs: another than the file's; the trajectories are shared out among the envs.

        Raises:
            ReplayBufferError: the file is missing, damaged or no buffer, or the buffer would not fit into memory.
        """
        return cls._load(path, device, capacity, num_envs)

    @classmethod
    def _load(
        cls, path: str | Path, device: torch.device | str, capacity: int | None, num_envs: int | None, **options: Any
    ) -> Self:
        """Load; `options` are arguments of a subclass that no file holds."""
        path = Path(checked(f"{cls.__name__}.load", "path", path, AnyPath))
        found = read_buffer(path)
        # The file's seed replaces this one, which leaves the global generator alone.
        make: Callable[..., Self] = partial(cls, **found.arguments(), seed=0, **options)
        capacity = found.capacity if capacity is None else capacity
        buffer = make(capacity=capacity, num_envs=found.num_envs if num_envs is None else num_envs, device=device)
        is_same = (buffer.capacity, buffer.num_envs) == (found.capacity, found.num_envs)
        as_saved = buffer
        if not is_same:  # a ring that never wrapped can be shorter
            longest = max(int(found.written.max()), 1)
            as_saved = make(capacity=min(found.capacity, longest * found.num_envs), num_envs=found.num_envs)
        try:
            load = as_saved._prepare(found, is_exact=False)
        except (CheckpointError, ReplayBufferError) as error:
            raise ReplayBufferError(f"{path}: {error}") from error
        load()
        if not is_same:
            append(as_saved._ring, buffer._ring, f"ReplayBuffer.load: {path}")
            buffer._set_generator(found)
        return buffer
