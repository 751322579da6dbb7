"""Sequences of transitions, for memories that are trained over time (Kapturowski et al. 2019, R2D2, section 3)."""

import dataclasses

import torch
from torch import Tensor

from rltrainer.data.ring import Ring
from rltrainer.types import Sequences

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
