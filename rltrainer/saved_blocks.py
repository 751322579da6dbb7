"""The protocol for the parts of a state that are saved in blocks, each when it has changed."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rltrainer.types import State


@runtime_checkable
class SavedBlocks(Protocol):
    """A value in a state that is too large to be copied when it is saved; made for one save.

    From `hold` on, `take` returns what a block held when `hold` was called, whatever is written meanwhile.
    """

    @property
    def mark(self) -> object:
        """Stands for the contents at this moment: what a later save asks `changed_since` about."""

    def __len__(self) -> int:
        """Return how many blocks there are."""

    def changed_since(self, mark: object | None) -> list[int]:
        """Return the blocks that may differ from those at a mark, in the order in which they are better taken.

        Args:
            mark: of an earlier save; None returns all of them.
        """

    def hold(self, blocks: Sequence[int]) -> None:
        """Keep what these blocks hold now, for `take`; called by who writes the contents, between two writes."""

    def take(self, block: int) -> State:
        """Return the contents of a block that is held, once; called by any thread."""

    def release(self) -> None:
        """Hold nothing any more; called by any thread."""
