"""The contents of one save: copies of all that may change, and blocks that are copied when their turn comes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rltrainer.checkpoint.manifest import Blocks
from rltrainer.saved_blocks import SavedBlocks
from rltrainer.state_file import pack_state
from rltrainer.types import State


@dataclass(frozen=True)
class InSegments:
    """Blocks that were saved: their mark then, and the segments that hold them."""

    mark: object
    names: list[str]


Saved = dict[tuple[str, str], InSegments]
"""By part and key in its state."""


@dataclass
class Unsaved:
    """Blocks of a value, and the segments that hold them; None for those that are to be written."""

    value: SavedBlocks
    names: list[str | None]
    changed: list[int]


class Capture:
    """The state of a run at one moment.

    Args:
        parts: the state of each part; `SavedBlocks` may be among its values.
        saved: what the save before wrote.
        present: the segments that are there.

    Raises:
        TypeError: something in a state cannot be saved; the text names it.
    """

    def __init__(self, parts: Mapping[str, State], saved: Saved, present: Collection[str]) -> None:
        self.blocks = {
            (part, key): _compare(value, saved.get((part, key)), present)
            for part, state in parts.items()
            for key, value in state.items()
            if isinstance(value, SavedBlocks)
        }
        plain = {
            part: {key: value for key, value in state.items() if (part, key) not in self.blocks}
            for part, state in parts.items()
        }
        self.parts = {part: pack_state(part, state).copied() for part, state in plain.items()}
        try:
            for blocks in self.blocks.values():
                blocks.value.hold(blocks.changed)
        except BaseException:
            self.release()
            raise

    def saved(self) -> Saved:
        """Return what is saved, once all blocks are written."""
        return {at: InSegments(each.value.mark, [*filter(None, each.names)]) for at, each in self.blocks.items()}

    def segments(self) -> Blocks:
        """Return the segments by part and key, once all blocks are written."""
        found: Blocks = {}
        for (part, key), each in self.saved().items():
            found.setdefault(part, {})[key] = each.names
        return found

    def release(self) -> None:
        """Let go of what is not written."""
        for blocks in self.blocks.values():
            blocks.value.release()


def _compare(value: SavedBlocks, before: InSegments | None, present: Collection[str]) -> Unsaved:
    """Find the blocks that are to be written: those that changed, and those whose segments are gone."""
    changed = value.changed_since(None if before is None else before.mark)
    known = [] if before is None else before.names[: len(value)]  # there are fewer after the data was cleared
    names = [name if name in present else None for name in known] + [None] * (len(value) - len(known))
    for block in changed:
        names[block] = None
    gone = [block for block, name in enumerate(names) if name is None and block not in set(changed)]
    return Unsaved(value, names, changed + gone)
