"""The replay buffer: what off-policy and offline algorithms learn from."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import gymnasium as gym
import torch
from torch import Tensor

from rltrainer.data.buffer_description import BufferDescription, describe
from rltrainer.data.columns import Extra, cell_nbytes, column_specs, require_device, require_extra
from rltrainer.data.drawing import Drawing, check_lengths, check_sample, max_num_batches
from rltrainer.data.frame_stack import FrameStack, require_cells_per_env
from rltrainer.data.from_arrays import cells_from_arrays
from rltrainer.data.memory_forecast import check_fits
from rltrainer.data.replay_file import Layout, prepare_ring, read_layout, ring_state, write_buffer, written_of
from rltrainer.data.ring import Ring
from rltrainer.data.row_log import RowLog
from rltrainer.data.spread import append
from rltrainer.data.state_checks import in_order
from rltrainer.data.storage import Array
from rltrainer.errors import NonFiniteError, ReplayBufferError, RLTrainerError, SpaceError, field_error_text
from rltrainer.spaces import ValueRange
from rltrainer.tree import Tree, named_leaves
from rltrainer.types import Load, Rollout, Sequences, State, Transitions
from rltrainer.validation.field_rules import AnyPath, NonNegativeInt, PositiveInt, checked

CHUNK_SIZE = 65536
"""Transitions that are copied at once where a whole buffer is walked through."""


class ReplayBuffer:
    """Stores the newest transitions of `num_envs` streams and samples them uniformly.

    Each observation is stored once. What cannot be sampled is not stored, so every transition is as likely as any
    other. `drawing.sampler` draws them otherwise.

    Args:
        capacity: transitions in all; rounded up to a multiple of `num_envs`.
        observation_space: of one env.
        action_space: of one env.
        num_envs: how many streams there are.
        device: where the data lives and is sampled.
        seed: of the sampling; wins over the trainer's.
        extra: further columns, from their name to (shape, dtype) of one cell.
        frame_stack: k, where an observation is k frames, as `gymnasium.wrappers.FrameStackObservation` makes it; each
            frame is stored once, and where a trace begins its first one is repeated. Of a full buffer, each env's k - 1
            oldest transitions are not sampled: frames of their stacks are gone. None stores observations as they are.

    Raises:
        ParamsError: a value breaks its rule.
        SpaceError: a space cannot be stored.
        ReplayBufferError: the buffer would not fit into memory.
    """

    sampler_nbytes: ClassVar[int] = 0
    """Bytes per transition of what decides how often each is drawn."""
    saving_nbytes: ClassVar[int] = 0
    """Bytes per transition that saving takes besides, for a moment."""

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
        cells_per_env = require_cells_per_env(owner, capacity, num_envs, frame_stack)
        self.capacity, self.num_envs, self.extra = cells_per_env * num_envs, num_envs, require_extra(owner, extra)
        self.device = require_device(owner, device)
        self.observation_space, self.action_space = observation_space, action_space
        stack = frames.num_frames if frames else None
        self._layout = Layout(observation_space, action_space, self.capacity, num_envs, self.extra, stack)
        specs = column_specs(owner, frames.space if frames else observation_space, action_space, self.extra)
        self._cell_nbytes = cell_nbytes(specs) + 4 + self.sampler_nbytes  # 4: the slot of a final observation
        needed = (self.capacity + self.num_envs) * (self._cell_nbytes + self.saving_nbytes)
        check_fits(owner, "capacity", capacity, needed, self.device)
        self._ring = Ring(owner, specs, ValueRange(action_space), cells_per_env, self.num_envs, self.device, frames)
        self.drawing = Drawing(self._ring, checked(owner, "seed", seed, NonNegativeInt | None))

    @property
    def generator(self) -> torch.Generator:
        """The generator of the sampling."""
        return self.drawing.generator

    @property
    def nbytes(self) -> int:
        """Bytes reserved for the data."""
        return self._ring.nbytes

    def __len__(self) -> int:
        """Return how many transitions it holds."""
        return len(self._ring)

    def add(
        self,
        obs: Tree,
        action: Any,
        reward: Any,
        next_obs: Tree,
        terminated: Any,
        truncated: Any,
        extra: dict[str, Any] | None = None,
        *,
        stream: object | None = None,
    ) -> None:
        """Store one step of all envs; each leaf is an array or tensor [N, ...].

        Where the step before did not end its episode, `obs` is its `next_obs`; else call `end_trajectory` first.
        A step of another stream than the step before continues nothing.

        Args:
            obs: what was acted on.
            action: what the envs received.
            reward: [N].
            next_obs: the true successors, also where an episode ended.
            terminated, truncated: [N] bool.
            extra: all declared extras; None if none are declared.
            stream: any object that stands for the envs' unbroken run; a collector passes its own.

        Raises:
            ReplayBufferError: a leaf is missing, or has another shape or kind of number; nothing is stored.
            SpaceError: an action lies outside its space; nothing is stored.
        """
        if stream is not self._ring.stream:
            self._ring.turn_to(stream)
        write_whole(self._ring, self._ring.add, obs, action, reward, next_obs, terminated, truncated, extra)

    def add_rollout(self, rollout: Rollout, *, stream: object | None = None) -> None:
        """Store the valid cells of a rollout.

        In an env where the rollout begins with the successor of what was stored last, it continues that; but not if it
        is of another stream, says that it starts anew there, or `end_trajectory` was called.

        Args:
            rollout: the cells [T, N].
            stream: see `add`.

        Raises:
            ReplayBufferError: the rollout has other envs, shapes or extras; nothing is stored.
            SpaceError: an action lies outside its space; nothing is stored.
        """
        write_whole(self._ring, self._ring.add_rollout, rollout, stream)

    def end_trajectory(self, envs: Array | None = None) -> None:
        """End the traces: what is stored next does not continue what was stored last.

        Args:
            envs: [N] bool, which envs; None breaks all.
        """
        self._ring.end_trajectory(envs)

    def is_of(self, stream: object) -> bool:
        """Return whether what was stored last is of this stream."""
        return stream is self._ring.stream

    def go_on(self, stream: object, obs: Tree) -> None:
        """Continue a stream that was loaded; where `obs` [N, ...] is not the last successor, the trace is broken."""
        self._ring.go_on(stream, obs)

    def sample(
        self, batch_size: int, *, n_step: int = 1, gamma: float = 0.99, num_batches: int | None = None
    ) -> Transitions:
        """Draw transitions uniformly, with replacement.

        Args:
            batch_size: B, how many.
            n_step: steps that `reward` sums up; fewer where an episode or trace ends or nothing newer is stored.
            gamma: discount of one step, in [0, 1].
            num_batches: K, for K gradient steps: the same as that many calls; None draws one batch.

        Returns:
            transitions [B], or [K, B].

        Raises:
            ReplayBufferError: the buffer is empty, or a value breaks its rule.
        """
        arguments = (batch_size, n_step, gamma, num_batches)
        shape, n_step, gamma = check_sample("ReplayBuffer.sample", self._ring, self._cell_nbytes, *arguments)
        cells, weight = self.drawing.draw(shape)
        batch = self._transitions(cells.flatten(), n_step, gamma)
        batch = batch if num_batches is None else batch.reshape(*shape)
        if weight is not None:
            batch.weight = weight
        return batch

    def _transitions(self, cells: Tensor, n_step: int, gamma: float) -> Transitions:
        """Return the transitions that start at cells that were drawn [B]."""
        return self._ring.transitions(cells, n_step, gamma)

    def sample_sequences(
        self,
        batch_size: int,
        length: int,
        burn_in: int = 0,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        num_batches: int | None = None,
    ) -> Sequences:
        """Draw sequences: each begins its training at a transition that is drawn as `sample` draws it.

        The burn-in are the transitions before, the rest those after it, both within its trace; their weights are 0 in
        the burn-in and past the ends of the trace.

        Args:
            batch_size: B, how many.
            length: transitions that are trained on.
            burn_in: transitions before them.
            n_step, gamma, num_batches: see `sample`.

        Returns:
            sequences [burn_in + length, B], or [K, burn_in + length, B].

        Raises:
            ReplayBufferError: the buffer is empty, a value breaks its rule, or no trace can be so long.
        """
        owner = "ReplayBuffer.sample_sequences"
        length, burn_in = check_lengths(owner, self._ring, length, burn_in)
        arguments, nbytes = (batch_size, n_step, gamma, num_batches), self._cell_nbytes * (burn_in + length)
        shape, n_step, gamma = check_sample(owner, self._ring, nbytes, *arguments)
        return sequences_at(self._ring, *self.drawing.draw(shape), length, burn_in, n_step, gamma)

    def max_num_batches(self, batch_size: int) -> int:
        """Return how many batches are sampled at once at most, so that their memory stays small beside the data."""
        return max_num_batches(batch_size * self._cell_nbytes)

    def update_priorities(self, index: Tensor, td_error: Tensor | None) -> None:
        """Tell the sampler, if there is one, how far predictions were off; both are [B] or [K, B]."""
        self.drawing.update(index, td_error)

    def observations(self, chunk_size: int = CHUNK_SIZE) -> Iterator[Tree]:
        """Yield the observations of all transitions as trees [chunk, ...], for statistics."""
        for cells in self._ring.all_cells(chunk_size):
            yield self._ring.observations(cells)

    def describe(self, reference_scores: tuple[float, float] | None = None) -> BufferDescription:
        """Return what it holds, to be printed; `reference_scores`: returns that are 0 and 1 of its behaviour score."""
        return describe(self._ring, self.action_space, reference_scores, CHUNK_SIZE)

    def check_finite(self) -> None:
        """Raise a `NonFiniteError` that names leaf and `index` of the first transition with NaN or infinity."""
        check_finite(self._ring, CHUNK_SIZE)

    def clear(self) -> None:
        """Forget all transitions; memory and generator stay as they are."""
        self._ring.clear()

    def seed(self, seed: int) -> None:
        """Seed the sampling, unless the buffer was given a seed of its own."""
        self.drawing.seed(seed)

    def extend(self, other: "ReplayBuffer") -> None:
        """Append the transitions of another buffer.

        Its traces stay whole and in order, each in one env; but where it alone holds more than fit, only its newest
        are taken, and a warning is logged that says how many are left out.

        Raises:
            SpaceError: the other one holds other spaces or extras.
            ReplayBufferError: it is no buffer, or this one.
        """
        if not isinstance(other, ReplayBuffer) or other is self:
            raise ReplayBufferError(field_error_text("ReplayBuffer.extend", "other", "must be another buffer", other))
        if mismatch := self._layout.mismatch(other._layout):
            raise SpaceError(f"ReplayBuffer.extend: {mismatch}")
        append(other._ring, self._ring, "ReplayBuffer.extend", CHUNK_SIZE)

    @classmethod
    def from_arrays(
        cls,
        *,
        observations: Tree,
        actions: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        next_observations: Tree | None = None,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        device: torch.device | str = "cpu",
        seed: int | None = None,
    ) -> Self:
        """Make a buffer from logged data of one stream, in time order; each leaf is an array or tensor [M, ...].

        Without `next_observations` the successor of a row is the next row. That of a truncated row, and of a last row
        that is not terminated, is then unknown: such rows are left out, and a warning is logged that says how many.
        With them, a row whose successor is not the next row ends its trace.

        Raises:
            SpaceError: a value does not fit its space.
            ReplayBufferError: the arrays are empty, of unequal length, of the wrong type, or not finite.
        """
        columns = (observations, actions, rewards, terminations, truncations)
        cells = cells_from_arrays(observation_space, action_space, columns, next_observations)
        buffer = cls(len(cells.source), observation_space, action_space, device=device, seed=seed)
        buffer._ring.store(cells)
        buffer.end_trajectory()
        return buffer

    def state_dict(self) -> State:
        """Return the whole state; its tensors share the buffer's memory, so write or clone them before going on."""
        return {**self._layout.to_state(), **ring_state(self._ring), **self.drawing.state_dict()}

    def logged_state(self) -> State:
        """Return the same for a run's checkpoint, whose rows are a `RowLog`: only those that are new are written."""
        return {**self._layout.to_state(), **ring_state(self._ring, RowLog(self._ring)), **self.drawing.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned, exactly; traces go on where they were.

        Raises:
            ReplayBufferError: the state is another buffer's, or damaged; nothing is changed.
        """
        self.prepare_load(state)()

    def prepare_load(self, state: State) -> Load:
        """Check a whole state, and return what loads it."""
        if mismatch := self._layout.mismatch(Layout.of_state(state, self.nbytes), with_size=True):
            raise ReplayBufferError(f"ReplayBuffer.load_state_dict: {mismatch}")
        return self._prepare_load(state, "ReplayBuffer.load_state_dict", is_exact=True)

    def save(self, path: str | Path) -> None:
        """Write the buffer to a file: data, never code. Rows that were never filled are not written.

        Raises:
            ReplayBufferError: it could not be written; what was there is unchanged.
        """
        write_buffer(checked("ReplayBuffer.save", "path", path, AnyPath), self.state_dict())

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: torch.device | str = "cpu",
        capacity: int | None = None,
        num_envs: int | None = None,
    ) -> Self:
        """Read a buffer that any replay buffer's `save` wrote; what is added next starts a new trace.

        Args:
            path: the file.
            device: where the data will live.
            capacity: another than the file's; of more transitions than fit the newest are kept, and a warning is
                logged that says how many are left out.
            num_envs: another than the file's; the traces are shared out among the envs.

        Returns:
            the buffer; unless capacity, envs or class differ, equal in every field and in what it samples next.

        Raises:
            ReplayBufferError: the file is missing, damaged or no buffer, or the buffer would not fit into memory.
            ParamsError: an argument breaks its rule.
        """
        return cls._read(path, device, capacity, num_envs)

    @classmethod
    def _read(
        cls, path: str | Path, device: torch.device | str, capacity: int | None, num_envs: int | None, **options: Any
    ) -> Self:
        """Read a buffer; `options` are what a subclass takes besides, and no file holds."""
        path = checked(f"{cls.__name__}.load", "path", path, AnyPath)
        state, layout, smallest = read_layout(path)
        # The seed is replaced by the file's; giving one leaves the global generator alone.
        make = partial(cls, **layout.arguments(), seed=0, **options)
        capacity = layout.capacity if capacity is None else capacity
        buffer = make(capacity=capacity, num_envs=layout.num_envs if num_envs is None else num_envs, device=device)
        if (buffer.capacity, buffer.num_envs) == (layout.capacity, layout.num_envs):
            buffer._prepare_load(state, path)()
            return buffer
        as_saved = make(capacity=smallest.capacity, num_envs=smallest.num_envs)
        as_saved._prepare_load(state, path)()
        append(as_saved._ring, buffer._ring, f"ReplayBuffer.load: {path}", CHUNK_SIZE)
        buffer.drawing.load_generator(state)
        return buffer

    def _prepare_load(self, state: State, source: str | Path, is_exact: bool = False) -> Load:
        try:
            load_ring = prepare_ring(self._ring, state, self.observation_space, is_finite=is_exact)
            load_drawing = self.drawing.prepare_load(state, written_of(state, self.num_envs), is_exact)
        except ReplayBufferError as error:
            raise ReplayBufferError(f"{source}: {error}") from error
        return in_order(load_ring, load_drawing)


MEMORY = "state"
"""The extra that holds the memory with which a policy acted."""


def sequences_at(
    ring: Ring, cells: Tensor, weight: Tensor | None, length: int, burn_in: int, n_step: int, gamma: float
) -> Sequences:
    """Return the sequences whose first trained transitions are these; see `ReplayBuffer.sample_sequences`.

    Args:
        ring: where they lie.
        cells: [B] or [K, B] flat indices.
        weight: of each sequence, of the same shape; None stands for 1.
        length, burn_in, n_step, gamma: see there.
    """
    start = cells.flatten()
    ahead, counts = ring.path(start, length)
    before, _ = ring.path(start, burn_in + 1, backwards=True, drawable=True)
    path = torch.cat([before[1:].flip(0), ahead])
    counts = torch.cat([counts.new_zeros(burn_in, len(start)), counts])
    # [T, B], or [K, T, B]: the batches of gradient steps come first.
    path, counts = (x.view(-1, *cells.shape).movedim(0, -2) for x in (path, counts))
    flat = path.flatten()
    batch = ring.transitions(flat, n_step, gamma).reshape(*path.shape)
    batch.weight = counts.float() if weight is None else counts * weight.unsqueeze(-2)
    if MEMORY in batch.extra:
        batch.extra[MEMORY] = batch.extra[MEMORY].select(path.ndim - 2, 0)
    follows = ring.path(flat, 2, backwards=True, drawable=True)[1][1]
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return Sequences(**fields, first=~follows.view(path.shape))


def check_finite(ring: Ring, chunk_size: int) -> None:
    """Raise a `NonFiniteError` that names leaf and index of the first transition with NaN or infinity."""
    for cells in ring.all_cells(chunk_size):
        batch = ring.transitions(cells, 1, 1.0)
        for name in ("obs", "action", "reward", "next_obs"):
            for path, leaf in named_leaves(getattr(batch, name), name):
                bad = (~torch.isfinite(leaf)).nonzero()
                if len(bad):
                    index, value = int(cells[bad[0, 0]]), float(leaf[tuple(bad[0])])
                    hint = "Leave it out, or replace it, before training."
                    raise NonFiniteError(f"ReplayBuffer: transition {index}: {path} = {value}. {hint}")


def write_whole(ring: Ring, write: Callable[..., None], *values: Any) -> None:
    """Make a write; one that an interrupt tears is made again, and then the interrupt goes on its way.

    Who catches it and goes on would train on rows of which one half is of another transition, in silence.

    Args:
        ring: what is written into; it notes with the last operation of a write how much was written.
        write: `ring.add` or `ring.add_rollout`: made twice, it is as if made once.
        values: its arguments.
    """
    written = ring.written
    try:
        write(*values)
    except RLTrainerError:
        raise  # a value does not fit, and nothing was stored
    except BaseException:
        if ring.written is written:
            ring.final.repair(ring.heads())
            with contextlib.suppress(Exception):
                write(*values)
        raise
