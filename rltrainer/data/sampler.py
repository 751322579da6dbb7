"""Sampling apart from storage: what a ring tells a sampler, and what a buffer asks of it."""

from typing import Protocol

import torch
from torch import Tensor

from rltrainer.types import Load, State


class Sampler(Protocol):
    """Draws cells of a ring, flat indices int64, where they are not drawn uniformly."""

    def stored(self, cells: Tensor) -> None:
        """Take note of cells [M] that were written."""

    def forgotten(self, cells: Tensor) -> None:
        """Take note of cells [M] that hold no transition any more, or must not be drawn any more."""

    def copied(self, cells: Tensor, other: "Sampler", source: Tensor) -> None:
        """Take over what another ring's sampler knows of its cells [M] that were copied to these."""

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
        """Return what it knows, given all cells that can be drawn [M], ascending."""

    def prepare_load(self, state: State, cells: Tensor) -> Load:
        """Check a whole state, of these cells [M], and return what loads it.

        Raises:
            ReplayBufferError: it is another sampler's, or damaged.
        """
