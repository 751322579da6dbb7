"""The place of each cell of a ring in its trace, noted once for each trace when it is known to have ended."""

import numpy as np

from rltrainer.data.ring import Ring
from rltrainer.data.storage import Array


class TraceBounds:
    """Counts the cells of a trace that lie before and after a cell.

    Cells that were stored since the last question are looked at then, each once. A cell's number is how many cells its
    env had ever stored before it.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        # Of the traces that have ended; those that go on are counted from what was written last.
        self._before, self._after = np.zeros((2, ring.num_cells), np.int32)
        self._era: object | None = None

    def of(self, cells: Array) -> tuple[Array, Array]:
        """Return how many cells that are stored lie before and after cells [M] in their traces, int64 each."""
        self._catch_up()
        ring, env = self._ring, cells % self._ring.num_envs
        written = ring.written
        age = ((written - 1)[env] - cells // ring.num_envs) % ring.num_rows
        number = written[env] - 1 - age
        has_ended = number < self._begin[env]
        before = np.where(has_ended, self._before[cells], number - self._begin[env])
        oldest = (written - ring.sizes())[env]
        return np.minimum(before, number - oldest), np.where(has_ended, self._after[cells], age)

    def _catch_up(self) -> None:
        """Look at what was stored since the last time, and at the newest cell of then, whose trace may be broken."""
        ring = self._ring
        written, oldest = ring.written, ring.written - ring.sizes()
        if self._era is not ring.final.era:
            self._era, self._seen, self._begin = ring.final.era, oldest, oldest.copy()
        first = np.maximum(self._seen - 1, oldest)
        number = first + np.arange(int((written - first).max(initial=0)))[:, None]  # [rows, N]
        cells = number % ring.num_rows * ring.num_envs + np.arange(ring.num_envs)
        ended = (ring.final.slots.reshape(-1)[cells] > 0) & (number < written) & (number >= self._begin)
        for row, env in np.argwhere(ended).tolist():
            end = int(number[row, env])
            trace = np.arange(max(int(self._begin[env]), int(oldest[env])), end + 1)
            at = trace % ring.num_rows * ring.num_envs + env
            self._before[at], self._after[at] = trace - self._begin[env], end - trace
            self._begin[env] = end + 1
        self._seen = written.copy()
