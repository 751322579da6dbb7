"""Paths of runs that are logged at one place: `log.csv`, `log-2.csv`, `log-3.csv`."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Test = Callable[[Path], bool]


@dataclass
class RunPath:
    """The files or folders of runs: the path that a user gave, and the same with numbers before its suffix."""

    given: Path
    suffix: str

    def unused(self, is_used: Test) -> Path:
        """Return the given path if no run was logged there, else the first number that is free."""
        if not is_used(self.given):
            return self.given
        numbered = map(self._numbered, itertools.count(2))
        return next(path for path in numbered if not (path.exists() or is_used(path)))

    def claim(self) -> Path:
        """Make the first of these folders that is not there, and return it: no other process is given the same.

        Raises:
            OSError: it cannot be made.
        """
        self.given.parent.mkdir(parents=True, exist_ok=True)
        for path in itertools.chain([self.given], map(self._numbered, itertools.count(2))):
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
        raise AssertionError("numbers do not end")

    def newest(self, is_log: Test) -> Path:
        """Return the log that was written to last, the given path if there is none."""
        numbered = itertools.takewhile(Path.exists, map(self._numbered, itertools.count(2)))
        return max(filter(is_log, [self.given, *numbered]), key=_last_change, default=self.given)

    def named(self, name: str | None) -> Path:
        """Return the path of this name, the given one if that is another log's name. The name is not trusted."""
        stem = self.given.name.removesuffix(self.suffix)
        number = re.fullmatch(rf"{re.escape(stem)}-(\d{{1,9}}){re.escape(self.suffix)}", name or "", re.ASCII)
        return self.given if number is None or name == self.given.name else self._numbered(int(number[1]))

    def _numbered(self, number: int) -> Path:
        if self.given.name in ("", ".."):  # the current folder or one above: a name beside it would surprise
            return self.given / str(number)
        return self.given.with_name(f"{self.given.name.removesuffix(self.suffix)}-{number}{self.suffix}")


def _last_change(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return max((file.lstat().st_mtime_ns for file in files), default=0)
