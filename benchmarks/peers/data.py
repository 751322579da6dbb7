"""Made-up data in the shapes of HalfCheetah, the same for all programs. Needs NumPy alone."""

from collections.abc import Callable, Iterator
from itertools import cycle

import numpy as np
from work import ACTION_SIZE, BUFFER_ENVS, BUFFER_SIZE, EPISODE_LENGTH, NUM_TRANSITIONS, OBS_SIZE, Work

Arrays = dict[str, np.ndarray]
"""obs, action, reward, next_obs, terminated and truncated, each [M, ...]."""


def offline_data(seed: int) -> Arrays:
    """Return episodes of random numbers, one after the other; each ends in a time limit."""
    rng = np.random.default_rng(seed)
    num_episodes = NUM_TRANSITIONS // EPISODE_LENGTH
    obs = rng.standard_normal((num_episodes, EPISODE_LENGTH + 1, OBS_SIZE), np.float32)
    return {
        "obs": obs[:, :-1].reshape(-1, OBS_SIZE),
        "action": rng.uniform(-1, 1, (NUM_TRANSITIONS, ACTION_SIZE)).astype(np.float32),
        "reward": rng.standard_normal(NUM_TRANSITIONS, np.float32),
        "next_obs": obs[:, 1:].reshape(-1, OBS_SIZE),
        "terminated": np.zeros(NUM_TRANSITIONS, bool),
        "truncated": np.tile(np.arange(EPISODE_LENGTH) == EPISODE_LENGTH - 1, num_episodes),
    }


def buffer_steps(seed: int, num_rows: int = 64) -> Iterator[Arrays]:
    """Yield steps of all envs for ever, in turn out of a few; one in about a thousand of their cells ends an episode."""
    rng = np.random.default_rng(seed)
    obs = rng.standard_normal((num_rows, BUFFER_ENVS, OBS_SIZE), np.float32)
    truncated = np.zeros((num_rows, BUFFER_ENVS), bool)
    truncated[0, 0] = True
    return cycle(
        {
            "obs": obs[row],
            "action": rng.uniform(-1, 1, (BUFFER_ENVS, ACTION_SIZE)).astype(np.float32),
            "reward": rng.standard_normal(BUFFER_ENVS, np.float32),
            "next_obs": obs[(row + 1) % num_rows],
            "terminated": np.zeros(BUFFER_ENVS, bool),
            "truncated": truncated[row],
        }
        for row in range(num_rows)
    )


def fill(work: Work, add: Callable[[], object]) -> None:
    """Add as many steps as the work says that the buffer holds."""
    for _ in range(int(work.fill * BUFFER_SIZE) // BUFFER_ENVS):
        add()
