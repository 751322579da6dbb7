"""The actions of the running episodes: with its seed and these, a deterministic env returns to where it was."""

from typing import Any

import numpy as np
import torch

from rltrainer.envs.adapter.episode_clock import EpisodeClock, Rows
from rltrainer.spaces import Array
from rltrainer.tree import to_array

MAX_STEPS = 100_000  # of the longest episode with kept actions
MIN_ROWS = 256


class ActionHistory:
    """Keeps the actions of N envs that are stepped together, back to the first step of the longest running episode."""

    # An env's episode is the end of its column. Memory is twice as long as the longest episode, or a few rows; one
    # of more than `MAX_STEPS` steps is not kept.

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self._rows: Any = None  # [C, N, ...], an array or a tensor as the envs get it
        self._used = self._capacity = 0

    def add(self, env_action: Any, clock: EpisodeClock) -> None:
        """Keep a row of actions [N, ...], before the clock has counted it."""
        if self._used == self._capacity:  # make room behind the newest rows that are kept
            steps = clock.episode_steps
            num_kept = int(steps[steps <= MAX_STEPS].max(initial=0))
            shape = (max(2 * num_kept + 2, MIN_ROWS), *env_action.shape)
            is_tensor = isinstance(env_action, torch.Tensor)
            rows = env_action.new_empty(shape) if is_tensor else np.empty(shape, env_action.dtype)
            if num_kept:
                rows[:num_kept] = self._rows[self._used - num_kept : self._used]
            self._rows, self._used, self._capacity = rows, num_kept, len(rows)
        self._rows[self._used] = env_action
        self._used += 1

    def of(self, env: int, num_steps: int) -> Array:
        """Return the actions [num_steps, ...] of an env's episode of so many steps."""
        return to_array(self._rows[self._used - num_steps : self._used, env])

    def restore(self, table: Any, num_steps: Rows) -> None:
        """Take over the actions of episodes [L, N, ...] that end together, and have so many steps [N]."""
        self._rows, self._used, self._capacity = table, len(table), len(table)


class StreamHistory(ActionHistory):
    """Keeps the actions of N envs that are stepped one by one; an env's episode is the start of its column."""

    def put(self, envs: Rows, num_steps: Rows, env_action: Any) -> None:
        """Keep the actions [K, ...] of envs that are so many steps into their episodes [K]."""
        # Columns start with the episodes: envs that are stepped one by one have no row in common.
        if not (fits := num_steps <= MAX_STEPS).all():
            envs, num_steps, env_action = envs[fits], num_steps[fits], env_action[fits]
        num_rows = int(num_steps.max(initial=0)) + 1
        if num_rows > self._capacity:
            rows = np.zeros((max(2 * num_rows, MIN_ROWS), self._num_envs, *env_action.shape[1:]), env_action.dtype)
            if self._capacity:
                rows[: self._capacity] = self._rows
            self._rows, self._capacity = rows, len(rows)
        self._rows[num_steps, envs] = env_action

    def of(self, env: int, num_steps: int) -> Array:
        """Return the actions [num_steps, ...] of an env's episode of so many steps."""
        return to_array(self._rows[:num_steps, env])

    def restore(self, table: Any, num_steps: Rows) -> None:
        """Take over the actions of episodes [L, N, ...] that end together, and have so many steps [N]."""
        rows = np.zeros_like(table)
        for env, count in enumerate(num_steps.tolist()):
            rows[:count, env] = table[len(table) - count :, env]
        self._rows, self._capacity = rows, len(rows)
