"""Paths of runs that are logged at one place: `log.csv`, `log-2.csv`, `log-3.csv`."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path


class RunPath:
    """The files or folders of runs: the path that a user gave, and the same with numbers.

    Args:
        given: the path.
        suffix: the end of its name that stays behind the number.
        is_log: returns whether a path holds a log.
        side: returns the file that lies beside a log; None if there is none.
    """

    def __init__(
        self, given: Path, suffix: str, is_log: Callable[[Path], bool], side: Callable[[Path], Path] | None = None
    ) -> None:
        self.given, self._suffix, self._is_log, self._side = given, suffix, is_log, side

    def unused(self) -> Path:
        """Return the given path if no run was logged there, else the first number that is free."""
        if not (self._is_log(self.given) or self._has_side(self.given)):
            return self.given
        number = 2
        while self._numbered(number).exists() or self._has_side(self._numbered(number)):
            number += 1
        return self._numbered(number)

    def newest(self) -> Path:
        """Return the log that was written to last, the given path if there is none."""
        return max(filter(self._is_log, self._all()), key=_last_change, default=self.given)

    def named(self, name: str | None) -> Path:
        """Return the path of this name, the given one if that is another log's name. The name is not trusted."""
        stem = self.given.name.removesuffix(self._suffix)
        number = re.fullmatch(rf"{re.escape(stem)}-(\d{{1,9}}){re.escape(self._suffix)}", name or "", re.ASCII)
        return self.given if number is None or name == self.given.name else self._numbered(int(number[1]))

    def _all(self) -> Iterator[Path]:
        yield self.given
        number = 2
        while self._numbered(number).exists():
            yield self._numbered(number)
            number += 1

    def _has_side(self, path: Path) -> bool:
        return self._side is not None and self._side(path).exists()

    def _numbered(self, number: int) -> Path:
        if self.given.name in ("", ".."):  # the current folder or one above: a name beside it would surprise
            return self.given / str(number)
        return self.given.with_name(f"{self.given.name.removesuffix(self._suffix)}-{number}{self._suffix}")


def _last_change(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return max((file.lstat().st_mtime_ns for file in files), default=0)
