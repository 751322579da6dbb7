"""The questions and reports of a replay buffer to what draws from it."""

from typing import Protocol

import torch
from torch import Tensor

from rltrainer.types import State


class Sampler(Protocol):
    """Draws the transitions of a replay buffer where they are not drawn uniformly: `buffer.sampler`.

    Slots are int64, in 0 .. `buffer.num_slots` - 1, and on the buffer's device; each holds one transition or none.
    `Transitions.index` are slots, too.
    """

    def stored(self, slots: Tensor) -> None:
        """Note slots [M] that were written, oldest first in each env; their former contents are forgotten.

        An interrupted write is repeated, so the same slots may come twice.
        """

    def forgotten(self, slots: Tensor) -> None:
        """Note slots [M] that hold no transition any more, or must not be drawn any more."""

    def copied(self, slots: Tensor, other: "Sampler", source: Tensor) -> None:
        """Copy another sampler's knowledge of its slots `source` [M], which were copied to `slots` [M] here.

        `stored` was called for them before. `other` may be of another class.
        """

    def draw(
        self, num_drawable: int, shape: tuple[int, ...], progress: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return slots that were stored and not forgotten [*shape], and their weights in a loss, float32 [*shape].

        There are `num_drawable`; `shape` is (B,), or (K, B) for K batches; `progress` is the share of the training that
        is done, for schedules.
        """

    def update(self, slots: Tensor, td_error: Tensor) -> None:
        """Note the error of the prediction at each slot [M]."""

    def state_dict(self, slots: Tensor) -> State:
        """Return the knowledge of all slots that can be drawn [M], ascending: plain values and copies of tensors."""

    def check_state(self, state: State, slots: Tensor) -> None:
        """Raise a `ReplayBufferError` or `CheckpointError` unless it is a state of these slots [M]; change nothing."""

    def set_state(self, state: State, slots: Tensor) -> None:
        """Take over a checked state of slots [M], which cannot fail; copy its tensors, maybe mapped from a file."""
