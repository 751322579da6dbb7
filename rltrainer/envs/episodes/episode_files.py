"""Files of episodes: a folder of state files, each with the episodes that ended since the one before; none is changed.

A run that is resumed records the episodes since its checkpoint once more: the newest record of an episode counts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rltrainer.envs.resuming.action_trail import MAX_STEPS
from rltrainer.errors import CheckpointError
from rltrainer.state.state_file import read_state, write_state
from rltrainer.state.typed_state import from_state, to_state

Array = np.ndarray[Any, Any]

KIND, FOLDER = "episodes", "episodes"
_NAME = re.compile(r"(\d{6,})-(\d+)\.safetensors")


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that ended.

    Args:
        env: the index of its env.
        number: how many episodes of the env were before it.
        seed: of its reset.
        length: its steps.
        actions: what the env received [length, ...]; none if there were more than `MAX_STEPS`.
        digest: of the final observation; see `digest_of`.
        terminated: as the env said.
        truncated: by the env, or by what stepped it.
    """

    env: int
    number: int
    seed: int
    length: int
    actions: Array
    digest: int
    terminated: bool
    truncated: bool


@dataclass
class EpisodesState:
    """Some episodes in a file: arrays [E], and their actions one after the other [sum of kept steps, ...]."""

    env: Array
    number: Array
    seed: Array
    length: Array
    digest: Array
    terminated: Array
    truncated: Array
    actions: Array

    @classmethod
    def of(cls, episodes: list[Episode]) -> "EpisodesState":
        """Return what a file holds of these."""
        numbers = {name: [getattr(each, name) for each in episodes] for name in _INTEGERS}
        flags = {name: [getattr(each, name) for each in episodes] for name in _FLAGS}
        columns = {name: np.array(values, np.int64) for name, values in numbers.items()}
        columns |= {name: np.array(values, np.bool_) for name, values in flags.items()}
        return cls(**columns, actions=np.concatenate([each.actions for each in episodes]))

    def problem(self) -> str | None:
        """Return what is wrong with what was read from a file, or None."""
        for name in (*_INTEGERS, *_FLAGS):
            column, dtype = getattr(self, name), np.int64 if name in _INTEGERS else np.bool_
            if column.dtype != dtype or column.shape != self.env.shape or column.ndim != 1:
                return f"{name}: expected {np.dtype(dtype)} [{self.env.size}], found {column.dtype} {column.shape}"
        if (np.stack([self.env, self.number, self.seed, self.length]) < 0).any():
            return "env, number, seed and length must not be negative"
        if self.actions.ndim < 1 or int(self.kept.sum()) != len(self.actions):
            return f"actions: expected those of {int(self.kept.sum())} steps, found {self.actions.shape}"
        return None

    @property
    def kept(self) -> Array:
        """The number of actions of each episode [E]."""
        return np.where(self.length <= MAX_STEPS, self.length, 0)

    def episode(self, i: int) -> Episode:
        """Return one of the episodes."""
        first = int(self.kept[:i].sum())
        values = {name: getattr(self, name)[i].item() for name in (*_INTEGERS, *_FLAGS)}
        return Episode(**values, actions=self.actions[first : first + int(self.kept[i])].copy())


_INTEGERS, _FLAGS = ("env", "number", "seed", "length", "digest"), ("terminated", "truncated")


def next_index(folder: Path) -> int:
    """Return the number of the next file of a folder."""
    return max((index for index, _ in _files(folder)), default=-1) + 1


def write_episodes(folder: Path, index: int, first_env: int, episodes: list[Episode]) -> None:
    """Write a file that nobody changes any more; what else is recorded in the folder at this time has other envs.

    Raises:
        CheckpointError: it could not be written.
    """
    path = folder / f"{index:06d}-{first_env}.safetensors"
    try:
        write_state(path, KIND, to_state(EpisodesState.of(episodes)))
    except OSError as error:
        raise CheckpointError(f"{path}: episodes could not be written ({error})") from error


def find_episode(run: Path, env: int, number: int) -> Episode:
    """Return an episode of a run, the newest record of it.

    Raises:
        CheckpointError: there is none, or a file is damaged.
    """
    folder = run / FOLDER if (run / FOLDER).is_dir() else run
    known: set[int] = set()
    last = -1
    for _, path in sorted(_files(folder), reverse=True):  # the newest first
        found = from_state(EpisodesState, read_state(path, KIND, CheckpointError), str(path))
        for i in np.flatnonzero((found.env == env) & (found.number == number))[::-1][:1]:
            return found.episode(int(i))
        known |= set(found.env.tolist())
        last = max(last, int(found.number[found.env == env].max(initial=-1)))
    if not known:
        raise CheckpointError(f"{run}: no episode of it was recorded")
    what = f"env {env} has episodes up to {last}" if env in known else f"there are the envs {sorted(known)}"
    raise CheckpointError(f"{run}: env {env}, episode {number} was not recorded: {what}")


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the number and path of each file of a folder."""
    if folder.is_dir():
        for path in folder.iterdir():
            if match := _NAME.fullmatch(path.name):
                yield int(match[1]), path
