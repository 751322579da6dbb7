"""Paths of runs that are logged at one place: `log.csv`, `log-2.csv`, `log-3.csv`."""

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Test = Callable[[Path], bool]


@dataclass
class RunPath:
    """The files or folders of runs: the path that a user gave, and the same with numbers before its suffix."""

    given: Path
    suffix: str

    def claim(self, make: Callable[[Path], object] = Path.mkdir, is_used: Test | None = None) -> Path:
        """Make the first of these files or folders that is free, and return it: no other process gets the same.

        Args:
            make: makes it in one step, or raises a `FileExistsError` if it is there; by default it is a folder.
            is_used: whether a run has used a path that `make` would take; None asks `make` only.

        Raises:
            OSError: it cannot be made.
        """
        self.given.parent.mkdir(parents=True, exist_ok=True)
        for path in itertools.chain([self.given], map(self._numbered, itertools.count(2))):
            if is_used is not None and (is_used(path) or (path != self.given and path.exists())):
                continue
            with contextlib.suppress(FileExistsError):
                make(path)
                return path
        raise AssertionError("numbers do not end")

    def newest(self, is_log: Test) -> Path:
        """Return the log that was written to last, the given path if there is none."""
        return max(filter(is_log, [self.given, *self._existing()]), key=_last_change, default=self.given)

    def named(self, name: str | None) -> Path:
        """Return the path of this name, the given one if that is another log's name. The name is not trusted."""
        number = self._number(name or "")
        return self.given if number is None or name == self.given.name else self._numbered(number)

    def _existing(self) -> Iterator[Path]:
        """Yield the paths with numbers that are there, some of which may have been deleted between."""
        try:
            names = os.listdir(self._numbered(2).parent)
        except OSError:
            return
        numbers = sorted(number for name in names if (number := self._number(name)) is not None)
        yield from (path for path in map(self._numbered, numbers) if path.name in names)

    def _number(self, name: str) -> int | None:
        """Return the number in a name of these, None in another name."""
        stem = "" if self._is_above else self.given.name.removesuffix(self.suffix) + "-"
        found = re.fullmatch(rf"{re.escape(stem)}(\d{{1,9}}){re.escape(self.suffix)}", name, re.ASCII)
        return None if found is None else int(found[1])

    @property
    def _is_above(self) -> bool:
        """Tell whether it is the current folder or one above: a name beside it would surprise, so numbers lie in it."""
        return self.given.name in ("", "..")

    def _numbered(self, number: int) -> Path:
        if self._is_above:
            return self.given / str(number)
        return self.given.with_name(f"{self.given.name.removesuffix(self.suffix)}-{number}{self.suffix}")


def _last_change(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return max((file.lstat().st_mtime_ns for file in files), default=0)
