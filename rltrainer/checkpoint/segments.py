"""Segments: files named by their contents, never changed, that the checkpoints of a run share."""

import contextlib
import io
import os
import re
from collections.abc import Collection
from pathlib import Path

from rltrainer.atomic_write import remove, sync_directory
from rltrainer.checkpoint.members import FileEntry, check_member
from rltrainer.errors import CheckpointError
from rltrainer.state_file import pack_state
from rltrainer.types import State

FOLDER = "segments"
"""Name of the folder beside the checkpoints."""
KIND = "segment"
_OURS = re.compile(r"[0-9a-f]{64}\.safetensors|\.[0-9a-f]{64}\.safetensors\.new")


class SegmentFolder:
    """The segments of a run. Only the holder of the run's lock writes here.

    Args:
        directory: the run's.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FOLDER
        self._whole: dict[str, FileEntry] = {}  # those that this process has written or compared

    def names(self) -> set[str]:
        """Return the names of all segments that are there, those half written included."""
        with contextlib.suppress(FileNotFoundError):
            return {name for name in os.listdir(self.path) if _OURS.fullmatch(name)}
        return set()

    def write(self, state: State) -> str:
        """Write a state, unless there is such a segment already; return its name."""
        content = io.BytesIO()
        checksum = pack_state(KIND, state).write(content)
        name, entry = f"{checksum}.safetensors", FileEntry(content.tell(), checksum)
        if not self._is_whole(name, entry):
            temporary = self.path / f".{name}.new"
            try:
                with open(temporary, "wb") as stream, content.getbuffer() as view:
                    stream.write(view)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(temporary, self.path / name)
            except BaseException:
                remove(temporary)
                raise
            self._whole[name] = entry
        return name

    def entries(self, names: Collection[str]) -> dict[str, FileEntry]:
        """Return size and checksum of segments that were written here."""
        return {name: self._whole[name] for name in names}

    def sync(self) -> None:
        """Flush the names of all that was written to disk."""
        sync_directory(self.path)

    def remove(self, names: Collection[str]) -> None:
        """Remove segments."""
        for name in names:
            self._whole.pop(name, None)
            remove(self.path / name)

    def _is_whole(self, name: str, entry: FileEntry) -> bool:
        if name not in self._whole:
            with contextlib.suppress(CheckpointError, OSError):
                check_member(self.path / name, entry)  # a process that goes on begins with the segments of the last
                self._whole[name] = entry
        return name in self._whole and os.path.lexists(self.path / name)
