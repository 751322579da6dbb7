"""The checkpoints of a run: committed one after another into one directory, and the newest whole one found again."""

import os
from pathlib import Path
from typing import Any

from rltrainer.checkpoint.directory import read_checkpoint, write_checkpoint
from rltrainer.types import State


class CheckpointStore:
    """Writes the checkpoints of a run into `directory/checkpoint-<step>`.

    Args:
        directory: where they lie; made if it is not there.
        keep_last: how many of the newest stay; None keeps all.
        keep_best: how many of those with the highest scores stay too; None keeps all that have one.
    """

    def __init__(self, directory: str | os.PathLike[str], keep_last: int | None, keep_best: int | None) -> None:
        self.directory = Path(os.path.abspath(directory))
        self.keep_last, self.keep_best = keep_last, keep_best

    def open(self) -> None:
        """Take the lock of the directory, and remove what killed saves left behind.

        Raises:
            CheckpointError: another process writes there; the text names its pid and host.
        """

    def close(self) -> None:
        """Wait for what is being written, and give the lock back.

        Raises:
            CheckpointError: the last save failed.
        """

    def save(self, parts: dict[str, State], step: int, score: float | None) -> None:
        """Save a checkpoint; returns when all that may change is safe, the rest is written by a thread.

        Args:
            parts: the state of each part; see `live_state`.
            step: what the checkpoint is called by.
            score: what `keep_best` goes by; None and NaN are never best.

        Raises:
            CheckpointError: the save before failed, or this one cannot begin.
        """
        write_checkpoint(self.directory / f"checkpoint-{step:012d}", parts)

    def check(self) -> None:
        """Raise the failure of what was written in the background, once.

        Raises:
            CheckpointError: the last save failed.
        """

    def wait(self) -> None:
        """Wait until all is written; a failure is raised by the next `check`, `save` or `close`."""

    def newest_intact(self) -> Path | None:
        """Return the newest checkpoint that is whole; None if there are none.

        Each newer one that is damaged is named in a `RuntimeWarning`.

        Raises:
            CheckpointError: there are checkpoints, and all are damaged.
        """
        found = sorted(self.directory.glob("checkpoint-*"), reverse=True)
        for path in found:
            read_checkpoint(path)
            return path
        return None


def live_state(part: Any) -> State:
    """Return the state of a part for `CheckpointStore.save`: a buffer's rows are not copied, but saved in blocks."""
    state: Any = part.state_in_blocks() if hasattr(part, "state_in_blocks") else part.state_dict()
    return dict(state)
