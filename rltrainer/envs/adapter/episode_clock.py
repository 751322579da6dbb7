"""The position of each env in its sequence of episodes, and the seeds that follow from it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rltrainer.seeding import derive_seed, draw_seed
from rltrainer.validation.field_rules import NonNegativeInt

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Rows = np.ndarray[Any, np.dtype[np.int64]]

FAR = np.iinfo(np.int64).max  # a step that never comes


@dataclass
class ClockState:
    """State of an `EpisodeClock`."""

    seed: int | None
    episode: list[NonNegativeInt]
    episode_step: list[NonNegativeInt]
    num_steps: NonNegativeInt
    num_resets: NonNegativeInt


class EpisodeClock:
    """Counts episodes and steps of N envs; all seeds derive from `seed`, which is drawn where it is None.

    `first_env` is the global index of the first one: an env has the same seeds in whichever part of a run's envs it is.
    """

    def __init__(self, num_envs: int, seed: int | None, first_env: int = 0) -> None:
        self.seed, self.num_envs, self.first_env = seed, num_envs, first_env
        self.episode: Rows = np.zeros(num_envs, np.int64)  # how many were before the running one
        # Both count from the last reset of all envs, so that a step changes one number.
        self.num_steps, self._began = 0, np.zeros(num_envs, np.int64)
        self._num_resets = 0

    @property
    def episode_steps(self) -> Rows:
        """The number of steps of each env's running episode [N]; 0 while its reset is due."""
        return np.maximum(self.num_steps - self._began, 0)

    def step(self, rows: Rows) -> None:
        """Count a step of these envs [K] alone: all step numbers of the others move by one."""
        self.num_steps += 1
        later = self._began < FAR
        later[rows] = False
        self._began += later

    def finish(self, rows: Rows, delay: int) -> None:
        """Count the end of these envs' [K] episodes; the next ones start `delay` steps from now."""
        rows = rows[self.counts(rows)]  # an env that was left has ended its last episode already
        self.episode[rows] += 1
        self._began[rows] = self.num_steps + delay

    def skip(self, num_steps: int, steps: Rows, envs: Rows) -> None:
        """Count steps of all envs, and the episodes that ended with `steps` [E] among them, in `envs` [E]."""
        np.add.at(self.episode, envs, 1)
        self._began[envs] = self.num_steps + steps + 1  # of several in one env the last one counts
        self.num_steps += num_steps

    def counts(self, rows: Rows) -> Mask:
        """Return which of these envs [K] are counted, because they were not left."""
        return np.asarray(self._began[rows] != FAR)

    def leave(self, rows: Rows) -> None:
        """Stop counting these envs [K], which have ended their episodes, until the next restart."""
        self._began[rows] = FAR

    def postpone(self, rows: Rows) -> None:
        """Let these envs' [K] episodes start one step from now."""
        self._began[rows] = self.num_steps + 1

    def restart(self, first_episode: bool = False) -> None:
        """Go to each env's next episode in which no step was taken, or to its very first."""
        # An episode that was started is over now; one in which no step was taken keeps its number, and so its seed.
        was_inside = self.episode_steps > 0
        self.episode = np.zeros(self.num_envs, np.int64) if first_episode else self.episode + was_inside
        self._num_resets = 0 if first_episode else self._num_resets + (self.num_steps > 0)
        self.num_steps, self._began = 0, np.zeros(self.num_envs, np.int64)

    def reset_seed(self) -> int:
        """Return the seed of the last reset of all envs."""
        part = ("part", self.first_env) if self.first_env else ()
        return derive_seed(self._root(), "reset", self._num_resets, *part)

    def episode_seeds(self, rows: Rows) -> list[int | None]:
        """Return the seeds of these envs' [K] episodes in a list of all N envs, None for the other envs."""
        # A seed follows from the env and the number of its episode alone: neither the other envs nor the order in which
        # episodes end change what an env is started with.
        seeds: list[int | None] = [None] * self.num_envs
        for n in rows.tolist():
            seeds[n] = derive_seed(self._root(), self.first_env + n, int(self.episode[n]))
        return seeds

    def state(self) -> ClockState:
        """Return seed, episodes and steps."""
        steps = self.episode_steps.tolist()
        return ClockState(self.seed, self.episode.tolist(), steps, self.num_steps, self._num_resets)

    def load(self, state: ClockState, resetting: Rows) -> None:
        """Restore a state that was checked; the envs `resetting` [K] spend the next step on their reset."""
        self.seed, self.num_steps, self._num_resets = state.seed, state.num_steps, state.num_resets
        self.episode = np.array(state.episode, np.int64)
        self._began = self.num_steps - np.array(state.episode_step, np.int64)
        self.postpone(resetting)

    def _root(self) -> int:
        if self.seed is None:
            self.seed = draw_seed()
        return self.seed
