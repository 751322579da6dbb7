"""The episodes that a replay buffer holds: where each lies, how it ended, and what its rewards sum up to."""

import logging
from dataclasses import dataclass

import numpy as np
import torch

from rltrainer.data.incoming_cells import to_array
from rltrainer.data.ring import Ring
from rltrainer.data.storage import Array


@dataclass(frozen=True, slots=True)
class StoredEpisodes:
    """The E traces of M cells: env by env, in each env the oldest first.

    A trace begins an episode where one ended before, or at a boundary: envs that are reset begin anew.

    Attributes:
        cells: [M] the flat indices of all cells.
        last: [M] bool, at which of them a trace ends.
        length: [E] cells of each trace.
        return_: [E] float64, the sum of its rewards.
        terminated, truncated: [E] bool, how it ended; neither where data goes no further, or a boundary is.
        is_whole: [E] bool, False where the ring has overwritten its beginning.
    """

    cells: Array
    last: Array
    length: Array
    return_: Array
    terminated: Array
    truncated: Array
    is_whole: Array

    @property
    def is_finished(self) -> Array:
        """Traces that are episodes from their beginning to their end [E] bool."""
        return self.is_whole & (self.terminated | self.truncated)

    def warn_of_lost_beginnings(self, caller: str) -> None:
        """Log how many transitions the caller leaves out, where the ring has overwritten beginnings of episodes."""
        if not self.is_whole.all():
            text = "%s: %d of %d transitions belong to episodes whose beginning was overwritten, and are left out"
            num_left_out = int(self.length[~self.is_whole].sum())
            logging.getLogger("rltrainer").warning(text, caller, num_left_out, len(self.cells))


def stored_episodes(ring: Ring) -> StoredEpisodes:
    """Return the episodes of a ring, without a loop over them."""
    sizes = ring.sizes()
    stream_end = np.cumsum(sizes)[sizes > 0] - 1
    cells = to_array(ring.cells(torch.arange(len(ring), device=ring.device)))
    is_last = ring.final.slots.reshape(-1)[cells] > 0
    is_last[stream_end] = True
    last = np.flatnonzero(is_last)
    length = np.diff(last, prepend=-1)
    reward, terminated, truncated = (
        to_array(ring.columns[name].flat)[cells] for name in ("reward", "terminated", "truncated")
    )
    first = last - length + 1
    has_lost_its_beginning = np.isin(first, (stream_end - sizes[sizes > 0] + 1)[(ring.written > sizes)[sizes > 0]])
    return StoredEpisodes(
        cells=cells,
        last=is_last,
        length=length,
        return_=np.add.reduceat(reward.astype(np.float64), first) if len(first) else np.zeros(0),
        terminated=terminated[last],
        truncated=truncated[last],
        is_whole=~has_lost_its_beginning,
    )
