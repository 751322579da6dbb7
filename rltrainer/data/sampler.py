"""Sampling apart from storage: the questions and reports of a buffer to what draws from it."""

from typing import Protocol

import torch
from torch import Tensor

from rltrainer.types import Load, State


class Sampler(Protocol):
    """Draws the cells of a replay buffer where they are not drawn uniformly: `buffer.drawing.sampler`.

    Cells are int64, in 0 .. `buffer.drawing.num_cells` - 1, and on the buffer's device; each holds one transition or
    none. `Transitions.index` are cells, too.
    """

    def stored(self, cells: Tensor) -> None:
        """Take note of cells [M] that were written, oldest first in each env; what they held before is forgotten.

        A write that an interrupt tears is made again, so the same cells may come twice.
        """

    def forgotten(self, cells: Tensor) -> None:
        """Take note of cells [M] that hold no transition any more, or must not be drawn any more."""

    def copied(self, cells: Tensor, other: "Sampler", source: Tensor) -> None:
        """Take over what the sampler of another buffer knows of its cells `source` [M], which were copied to these.

        `stored` was called for them before. `other` may be of another class.
        """

    def draw(
        self, num_drawable: int, shape: tuple[int, ...], progress: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return cells that were stored and not forgotten [*shape], and their weights in a loss, float32 [*shape].

        Args:
            num_drawable: how many there are.
            shape: (B,), or (K, B) for K batches.
            progress: share of the training that is done, for schedules.
            generator: of the random numbers.
        """

    def update(self, cells: Tensor, td_error: Tensor) -> None:
        """Take note of how far the prediction at each cell [M] was off."""

    def state_dict(self, cells: Tensor) -> State:
        """Return what it knows, given all cells that can be drawn [M], ascending.

        The state consists of numbers, texts, tensors, lists and dicts; its tensors are copies.
        """

    def prepare_load(self, state: State, cells: Tensor) -> Load:
        """Check a whole state, of these cells [M], and return what loads it.

        Raises:
            ReplayBufferError: it is another sampler's, or damaged.
        """
