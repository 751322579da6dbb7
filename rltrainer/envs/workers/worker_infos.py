"""The way of infos from the envs in worker processes to the vector env.

Infos of a few numbers, the same ones in each env and step (MuJoCo's, Atari's), go through shared memory: pickling them
would take as long as stepping a small env. Other infos are gathered as gymnasium does and travel through a pipe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Info = dict[str, Any]
Array = np.ndarray[Any, Any]

MAX_NUMBERS = 16
"""Numbers of one env's info that shared memory has room for."""

_EXACT_INTS = 2**53  # integers below are exact as float64


@dataclass(frozen=True, slots=True)
class Schema:
    """The keys of an info of numbers, and their types, in the order of its items."""

    keys: tuple[str, ...]
    types: tuple[type, ...]

    @classmethod
    def of(cls, info: Info) -> "Schema | None":
        """Return the schema of an info, None if it holds something else than numbers or too many of them."""
        types = tuple(map(type, info.values()))
        is_short = 0 < len(types) <= MAX_NUMBERS
        is_exact = all(kind in (float, int, bool, np.float16, np.float32, np.float64) for kind in types)
        is_text = all(type(key) is str and key != "final_obs" for key in info)
        return cls(tuple(info), types) if is_short and is_exact and is_text else None

    def write(self, infos: Sequence[Info], columns: Array) -> bool:
        """Write infos into columns [n, MAX_NUMBERS], if they have this schema."""
        if not all(map(self._fits, infos)):
            return False
        columns[:, : len(self.keys)] = [list(info.values()) for info in infos]
        return True

    def read(self, columns: Array) -> Info:
        """Return infos that were written into columns [n, MAX_NUMBERS] as gymnasium gathers them."""
        infos: Info = {}
        for k, (key, kind) in enumerate(zip(self.keys, self.types, strict=True)):
            infos[key] = columns[:, k].astype(kind)
            infos[f"_{key}"] = np.ones(len(columns), np.bool_)
        return infos

    def _fits(self, info: Info) -> bool:
        """Return whether an info has these keys and types, and float64 holds its numbers."""
        if tuple(info) != self.keys or tuple(map(type, info.values())) != self.types:
            return False
        return int not in self.types or all(-_EXACT_INTS < value < _EXACT_INTS for value in info.values())


def merge_infos(infos: Info, part: Info, rows: slice, num_envs: int) -> None:
    """Put the infos of some envs, gathered as gymnasium does, among those of all."""
    for key, value in part.items():
        if isinstance(value, dict):
            merge_infos(infos.setdefault(key, {}), value, rows, num_envs)
            continue
        if key not in infos:
            shape = (num_envs, *value.shape[1:])
            infos[key] = np.full(shape, None) if value.dtype == object else np.zeros(shape, value.dtype)
        infos[key][rows] = value
