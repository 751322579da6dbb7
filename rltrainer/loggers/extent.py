"""The length to which a log file was written, and a check that a file is that log: only then may its end be removed."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from rltrainer.field_rules import NonNegativeInt

NUM_BYTES = 1 << 16
"""So many at the beginning and at the end of what was written are compared: a look at a long log costs nothing."""


@dataclass
class Extent:
    """Size and digest of a log file, by which a checkpoint knows it.

    Args:
        size: the bytes that were written.
        digest: SHA-256 of the first and the last of them.
        path: where it was; tells whose log it is where nothing was written yet.
    """

    size: NonNegativeInt
    digest: str
    path: str

    @classmethod
    def of(cls, path: Path, size: int) -> "Extent":
        """Measure the first bytes of a file."""
        return cls(size, _digest(path, size), os.path.abspath(path))

    def is_of(self, path: Path) -> bool:
        """Return whether a file begins with what was written."""
        if self.size == 0:
            return self.path == os.path.abspath(path)
        return path.stat().st_size >= self.size and _digest(path, self.size) == self.digest


def ends_with_step(path: Path, size: int, step: int) -> bool:
    """Return whether the first bytes of a text log end with a whole line of this step.

    For checkpoints of before there were digests, which know the size and the last step only.
    """
    last_line = _read(path, max(0, size - NUM_BYTES), size).rpartition(b"\n")
    line = last_line[0].rpartition(b"\n")[2]
    return last_line[2] == b"" and re.search(rb'^%d,|"step": %d,' % (step, step), line) is not None


def _digest(path: Path, size: int) -> str:
    first, last = _read(path, 0, min(size, NUM_BYTES)), _read(path, max(0, size - NUM_BYTES), size)
    return hashlib.sha256(first + last).hexdigest()


def _read(path: Path, start: int, stop: int) -> bytes:
    if start >= stop:
        return b""
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(stop - start)
