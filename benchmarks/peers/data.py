"""Made-up data in the shapes of HalfCheetah, the same for all programs. Needs NumPy alone."""

from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np
import task

Arrays = dict[str, np.ndarray]
"""obs, action, reward, next_obs, terminated and truncated, each [M, ...]."""


def offline_data(seed: int) -> Arrays:
    """Return episodes of random numbers, one after the other; each ends in a time limit."""
    rng = np.random.default_rng(seed)
    num_episodes = task.NUM_TRANSITIONS // task.EPISODE_LENGTH
    obs = rng.standard_normal((num_episodes, task.EPISODE_LENGTH + 1, task.OBS_SIZE), np.float32)
    return {
        "obs": obs[:, :-1].reshape(-1, task.OBS_SIZE),
        "action": rng.uniform(-1, 1, (task.NUM_TRANSITIONS, task.ACTION_SIZE)).astype(np.float32),
        "reward": rng.standard_normal(task.NUM_TRANSITIONS, np.float32),
        "next_obs": obs[:, 1:].reshape(-1, task.OBS_SIZE),
        "terminated": np.zeros(task.NUM_TRANSITIONS, bool),
        "truncated": np.tile(np.arange(task.EPISODE_LENGTH) == task.EPISODE_LENGTH - 1, num_episodes),
    }


def buffer_steps(seed: int, num_rows: int = 64) -> Iterator[Arrays]:
    """Yield steps of all envs for ever, out of a few in turn; one in about a thousand cells ends an episode."""
    rng = np.random.default_rng(seed)
    obs = rng.standard_normal((num_rows, task.BUFFER_ENVS, task.OBS_SIZE), np.float32)
    truncated = np.zeros((num_rows, task.BUFFER_ENVS), bool)
    truncated[0, 0] = True
    return cycle(
        {
            "obs": obs[row],
            "action": rng.uniform(-1, 1, (task.BUFFER_ENVS, task.ACTION_SIZE)).astype(np.float32),
            "reward": rng.standard_normal(task.BUFFER_ENVS, np.float32),
            "next_obs": obs[(row + 1) % num_rows],
            "terminated": np.zeros(task.BUFFER_ENVS, bool),
            "truncated": truncated[row],
        }
        for row in range(num_rows)
    )


def fill(work: task.Work, add: Callable[[], object], size: int = task.BUFFER_SIZE) -> None:
    """Add steps until the buffer, of this size, is as full as the work says."""
    for _ in range(int(work.fill * size) // task.BUFFER_ENVS):
        add()
