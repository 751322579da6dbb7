"""The record of a run's episodes, on their way to files."""

import hashlib
from pathlib import Path

import numpy as np

from rltrainer.envs.adapter.env_step import EnvStep
from rltrainer.envs.adapter.episode_seeds import EpisodeClock, Rows
from rltrainer.envs.episodes.episode_files import Episode, next_index, write_episodes
from rltrainer.envs.resuming.action_trail import MAX_STEPS, ActionTrail, as_array
from rltrainer.tree import Tree, leaves, map_tree

MAX_PENDING_NBYTES = 2**22
"""Bytes of actions that wait to be written; what is beyond does not wait for the next checkpoint."""


class EpisodeRecorder:
    """Writes the actions of episodes that have ended into files of a folder.

    Args:
        folder: made when there is something to write.
        trail: the actions of the running episodes.
        first_env: the index of the first env, where several record into one folder.
    """

    def __init__(self, folder: Path, trail: ActionTrail, first_env: int = 0) -> None:
        self._folder, self._trail, self._first_env = folder, trail, first_env
        self._index = next_index(folder)
        self._pending: list[Episode] = []
        self._nbytes, self._is_open = 0, True

    def record(self, rows: Rows, clock: EpisodeClock, result: EnvStep) -> None:
        """Take in the episodes of envs [K] that end with a step, which the clock has counted.

        Raises:
            CheckpointError: they could not be written.
        """
        if not self._is_open:
            return
        steps, seeds = clock.episode_steps, clock.episode_seeds(rows)
        for n in rows[clock.counts(rows)].tolist():
            # In the step in which an env broke down no transition took place.
            length = int(steps[n]) - int(result.valid is not None and not result.valid[n])
            actions = self._trail.of(n, int(steps[n]) if length <= MAX_STEPS else 0)[:length]
            digest = digest_of(map_tree(lambda leaf, n=n: as_array(leaf[n]), result.next_obs))
            flags = bool(result.terminated[n]), bool(result.truncated[n])
            number, seed = clock.episode_of(n), seeds[n] or 0
            self._pending.append(Episode(n + self._first_env, number, seed, length, actions.copy(), digest, *flags))
            self._nbytes += actions.nbytes + 64
        if self._nbytes > MAX_PENDING_NBYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits; raises as `record` does, and what could not be written waits on."""
        if self._pending:
            write_episodes(self._folder, self._index, self._first_env, self._pending)
            self._index += 1
            self._pending, self._nbytes = [], 0

    def close(self) -> None:
        """Write what waits, and record no more."""
        self._is_open = False
        self.flush()


def digest_of(obs: Tree) -> int:
    """Return what tells an observation from others: 63 bits of a hash of its leaves, as they are stored."""
    hasher = hashlib.blake2b(digest_size=8)
    for leaf in leaves(obs):
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    return int.from_bytes(hasher.digest(), "big") >> 1
