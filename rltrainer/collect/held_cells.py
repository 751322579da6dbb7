"""Cells that are kept back until their episode is long enough to be stored."""

from typing import Any

from rltrainer.data import RolloutBuffer
from rltrainer.data.storage import Array
from rltrainer.tree import map_tree


class HeldCells:
    """Hands cells on to a buffer, those of episodes shorter than `min_length` steps not at all.

    An episode's first cells are held until there are so many; if it ends before, they are dropped.
    """

    def __init__(self, num_envs: int, min_length: int) -> None:
        self.min_length = min_length
        self._length = [0] * num_envs  # of the running episodes
        self._cells: list[list[tuple[Any, ...]]] = [[] for _ in range(num_envs)]

    @property
    def counts(self) -> list[int]:
        """The number of cells that are held, of each env."""
        return [len(cells) for cells in self._cells]

    def restart(self) -> None:
        """Forget the running episodes: all envs were started anew."""
        self._length = [0] * len(self._length)
        self.drop()

    def resume(self, lengths: Array) -> None:
        """Go on with running episodes of these lengths [N], of which nothing is held."""
        self._length = lengths.tolist()
        self.drop()

    def drop(self) -> None:
        """Forget the cells that are held; those after them will be stored if their episode gets long enough."""
        for cells in self._cells:
            cells.clear()

    def hand_on(self, buffer: RolloutBuffer, envs: Array, cells: tuple[Any, ...], valid: Array, done: Array) -> None:
        """Store cells, or hold or drop them.

        Args:
            buffer: what they are for.
            envs, cells: the arguments of `RolloutBuffer.add_cells`, for envs [K].
            valid, done: [K] bool, which cells count, and with which an episode ends.
        """
        if self.min_length == 1:
            buffer.add_cells(envs, *cells)
            return
        for k, env in enumerate(envs.tolist()):
            self._length[env] += int(valid[k])
            self._cells[env].append(map_tree(lambda leaf, k=k: leaf[k : k + 1], cells))
            if self._length[env] >= self.min_length:
                for cell in self._cells[env]:
                    buffer.add_cells(envs[k : k + 1], *cell)
                self._cells[env].clear()
            if done[k]:
                self._cells[env].clear()
                self._length[env] = 0
