"""Offline and online data side by side (Ball et al. 2023, RLPD, section 4.1: half of each batch from either)."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rltrainer.data.buffer_state import MixedState
from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.ring import MEMORY
from rltrainer.data.storage import Array
from rltrainer.data.transition_sources import CHUNK_SIZE
from rltrainer.errors import ReplayBufferError, SpaceError
from rltrainer.plan import no_progress
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.seeding import derive_seed
from rltrainer.tree import Tree
from rltrainer.types import Sequences, State, Transitions
from rltrainer.validation.field_rules import PositiveInt, UnitFloat, checked


def _join(*parts: Tensor, sizes: list[int], axis: int) -> Tensor:
    """Join tensors along an axis; of a part of size 0 nothing."""
    whole = zip(parts, sizes, strict=True)
    return torch.cat([part if size else part.narrow(axis, 0, 0) for part, size in whole], axis)


def _of_online(name: str) -> Any:
    return property(lambda self: getattr(self.online, name))


class MixedBuffer(ReplayBuffer):
    """Stores into one buffer, and samples from it and another one in fixed shares.

    It is the online buffer in all but its samples: a collector fills that one, and a file holds that one alone. Before
    anything is collected, all of a batch is offline data.

    Args:
        online: receives new transitions; of any kind.
        offline: the other source of samples, not empty; of any kind.
        offline_share: of each batch, in [0, 1]; rounded to whole transitions, over all shards together.

    Raises:
        ReplayBufferError: a buffer is of another kind; `offline` is empty, the same buffer, or on another device.
        SpaceError: the two buffers hold different transitions.
        ParamsError: `offline_share` breaks its rule.
    """

    _state_class = MixedState
    # One memory: a transition that is stored here is stored there.
    capacity, num_envs, extra, device = map(_of_online, ("capacity", "num_envs", "extra", "device"))
    observation_space, action_space = map(_of_online, ("observation_space", "action_space"))
    generator, _has_own_seed = map(_of_online, ("generator", "_has_own_seed"))
    _ring, _layout, _nbytes = map(_of_online, ("_ring", "_layout", "_nbytes"))

    def __init__(self, online: ReplayBuffer, offline: ReplayBuffer, offline_share: float = 0.5) -> None:
        for name, buffer in (("online", online), ("offline", offline)):
            if not isinstance(buffer, ReplayBuffer):
                raise ReplayBufferError.about("MixedBuffer", name, "must be a ReplayBuffer", buffer)
        rules = {
            "must be another buffer than the online one": offline is not online,
            "must hold transitions": len(offline) > 0,
            f"must be on {online.device}, as the online one is": offline.device == online.device,
        }
        for rule in (rule for rule, holds in rules.items() if not holds):
            raise ReplayBufferError.about("MixedBuffer", "offline", rule, offline)
        # Samples are alike if one of the two stacks frames.
        layout = dataclasses.replace(offline._layout, frame_stack=online._layout.frame_stack)
        if mismatch := online._layout.mismatch(layout):
            raise SpaceError(f"MixedBuffer.offline: {mismatch}")
        self.online, self.offline = online, offline
        self.offline_share = checked("MixedBuffer", "offline_share", offline_share, UnitFloat)
        self.follow(no_progress, ALONE)

    def __len__(self) -> int:
        """Return the number of transitions that both hold."""
        return len(self.online) + len(self.offline)

    def follow(self, progress: Callable[[], float], ranks: Ranks) -> None:
        """Let both buffers follow a run; see `ReplayBuffer.follow`."""
        super().follow(progress, ranks)
        self.online.follow(progress, ranks)
        self.offline.follow(progress, ranks)

    def sample(self, batch_size: int, *, num_batches: int | None = None, **options: Any) -> Transitions:
        """Draw online transitions, then offline ones; each as their buffer does. See `ReplayBuffer.sample`.

        Returns:
            transitions [B], or [K, B]; `index` of the offline ones is `online.num_slots` larger than in their buffer.
        """
        parts, sizes = self._draw_parts("sample", batch_size, num_batches=num_batches, **options)
        return Transitions.combine(partial(_join, sizes=sizes, axis=0 if num_batches is None else 1), parts)

    def sample_sequences(
        self, batch_size: int, length: int, burn_in: int = 0, *, n_step: int = 1, gamma: float = 0.99,
        num_batches: int | None = None,
    ) -> Sequences:  # fmt: skip
        """Draw online sequences, then offline ones; each as their buffer does. For errors see `ReplayBuffer`.

        Returns:
            sequences [burn_in + length, B], or [K, burn_in + length, B]; `index` as `sample` returns it.
        """
        options: Any = {"length": length, "burn_in": burn_in, "n_step": n_step, "gamma": gamma}
        parts, sizes = self._draw_parts("sample_sequences", batch_size, num_batches=num_batches, **options)
        axis = 0 if num_batches is None else 1
        # The memory before the first action has no axis of time.
        memories = [drawn.extra.pop(MEMORY) for drawn in parts if MEMORY in drawn.extra]
        sequences = Sequences.combine(partial(_join, sizes=sizes, axis=axis + 1), parts)
        if memories:
            sequences.extra[MEMORY] = _join(*memories, sizes=sizes, axis=axis)
        return sequences

    def _draw_parts(self, method: str, batch_size: int, **options: Any) -> tuple[list[Any], list[int]]:
        """Draw from each buffer by its own method; return what was drawn, and how much of it is of this rank's batch.

        The second number may be 0 where another rank has all of a buffer's share: then one transition was drawn.
        """
        batch_size = checked(f"MixedBuffer.{method}", "batch_size", batch_size, PositiveInt, ReplayBufferError)
        # RLPD draws half from either (section 4.1); without online data all is offline. The share is
        # rounded over the batch of all ranks, and each rank has its part.
        whole = batch_size * self._ranks.world
        num_offline = round(self.offline_share * whole) if len(self.online) else whole
        part = self._ranks.part_of(num_offline)
        counts = ((self.online, batch_size - part, whole - num_offline), (self.offline, part, num_offline))
        parts, sizes = [], []
        for buffer, size, size_of_all in counts:
            if size_of_all > 0:  # then all ranks draw, as they exchange the weights of a prioritized buffer
                drawn = getattr(buffer, method)(max(size, 1), **options)
                drawn.index += self.num_slots * (buffer is self.offline)
                parts.append(drawn)
                sizes.append(size)
        return parts, sizes

    def max_num_batches(self, batch_size: int) -> int:
        """Return how many batches are sampled at once at most."""
        return min(self.online.max_num_batches(batch_size), self.offline.max_num_batches(batch_size))

    def update_priorities(self, index: Tensor, td_error: Tensor | None) -> None:
        """Report to each buffer the errors of its own transitions, all [B] or [K, B]; see `ReplayBuffer`."""
        if td_error is None or td_error.shape != index.shape:  # an error, unless both draw uniformly
            self.online.update_priorities(index, td_error)
            self.offline.update_priorities(index, td_error)
            return
        for batch, error in zip(index, td_error, strict=True) if index.dim() > 1 else ((index, td_error),):
            is_offline = batch >= self.num_slots
            self.online.update_priorities(batch[~is_offline], error[~is_offline])
            self.offline.update_priorities(batch[is_offline] - self.num_slots, error[is_offline])

    def observations(self, chunk_size: int = CHUNK_SIZE) -> Iterator[Tree]:
        """Yield the observations of both in trees [M, ...], for statistics."""
        yield from self.online.observations(chunk_size)
        yield from self.offline.observations(chunk_size)

    def longest_trajectory(self) -> int:
        """Return the transitions of the longest trajectory in either."""
        return max(self.online.longest_trajectory(), self.offline.longest_trajectory())

    def check_finite(self) -> None:
        """Look for NaN and infinity in both."""
        self.online.check_finite()
        self.offline.check_finite()

    def seed(self, seed: int) -> None:
        """Seed the sampling of both, except of a buffer that was given a seed of its own."""
        self.online.seed(seed)
        self.offline.seed(derive_seed(seed, "offline"))

    def take_part(self, index: int, *, num_envs: int) -> None:
        """Let the online buffer take its part; each part samples from all offline data."""
        self.online.take_part(index, num_envs=num_envs)
        self.offline._seed_part(index)

    def _seed_part(self, index: int) -> None:
        self.online._seed_part(index)
        self.offline._seed_part(index)

    def _sampling_state(self) -> State:
        return {**self.online._sampling_state(), "offline": self.offline.sampling_state()}

    def _check_sampling(self, found: Any, written: Array, is_exact: bool) -> None:
        self.online._check_sampling(found, written, is_exact)
        self.offline._check_offline(found.offline, "MixedBuffer.offline")

    def _set_sampling(self, found: Any) -> None:
        self.online._set_sampling(found)
        self.offline._set_sampling(found.offline)

    def save(self, path: str | Path) -> None:
        """Write the online buffer to a file; see `ReplayBuffer.save`."""
        self.online.save(path)
