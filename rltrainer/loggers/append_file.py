"""An open file that only grows."""

from io import FileIO
from pathlib import Path


class AppendFile(FileIO):
    """Appends without a buffer, so that a killed process loses nothing that was written.

    It closes itself in silence: nothing is lost in one that nobody closed, so Python need not warn of it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "a+")

    def __del__(self) -> None:
        self.close()
