"""Logged data for the readers' tests: three episodes, and what a buffer of them must hold."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rltrainer.data import ReplayBuffer
from tests.unit.data.reference import as_obs, found

# 0 1 2 terminates | 10 11 12, a time limit | 20 21, the end of the file. Rewards are 1, 2, 4, ...
NUMBERS = np.array([0, 1, 2, 10, 11, 12, 20, 21])
ACTIONS = NUMBERS % 3

ROWS: dict[str, Any] = {
    "observations": as_obs(NUMBERS), "actions": ACTIONS, "rewards": 2.0 ** np.arange(8), "terminals": NUMBERS == 2,
    "timeouts": NUMBERS == 12,
}  # fmt: skip
"""The columns, named as D4RL names them."""

HELD = {
    0: (0, 1.0, 1.0, False, False, 0.5),
    1: (1, 2.0, 2.0, False, False, 0.5),
    10: (1, 8.0, 11.0, False, False, 0.5),
    11: (2, 16.0, 12.0, False, True, 0.5),  # 12's successor is unknown: the episode ends one transition earlier
    20: (2, 64.0, 21.0, False, False, 0.5),
}
"""What a buffer holds, by observation: action, reward, next_obs, terminated, truncated, discount. 2 is terminal."""

WARNING = "2 of 8 transitions have no known successor and are left out; their episodes end before them"

AFTER = as_obs([1, 2, 3, 11, 12, 13, 21, 22])


def columns(**changes: Any) -> dict[str, Any]:
    """Return the columns with changes; None takes one away."""
    return {name: column for name, column in (ROWS | changes).items() if column is not None}


def npz(path: Path, **changes: Any) -> Path:
    np.savez(path, **columns(**changes))
    return path


def hdf5(path: Path, **changes: Any) -> Path:
    h5py = pytest.importorskip("h5py")
    compressed: Any = {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": True}
    with h5py.File(path, "w") as file:
        for name, column in columns(**changes).items():
            if name in ("observations", "rewards") and isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
                file.create_dataset(name, data=column, **compressed)
            else:
                file[name] = column
        file["infos/qpos"] = np.zeros((8, 3))
        file["metadata/algorithm"] = b"SAC"
    return path


def parquet(path: Path, **changes: Any) -> Path:
    pa, module = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    found = columns(**{"note": ["x"] * 8} | changes)
    table = pa.table({name: list(x) if isinstance(x, np.ndarray) else x for name, x in found.items()})
    module.write_table(table, path, row_group_size=3)
    return path


def held(buffer: ReplayBuffer) -> dict[int, tuple[float, ...]]:
    """Return what a buffer holds; the successor of the terminal row, which is any, left out."""
    rows = found(buffer.sample(60 * len(buffer), gamma=0.5))
    terminal = rows.pop(2)
    assert (terminal[:2], terminal[3:]) == ((2, 4.0), (True, False, 0.0))
    return rows


def assert_is_the_log(buffer: ReplayBuffer) -> None:
    assert len(buffer) == 6
    assert held(buffer) == HELD
    assert buffer.observation_space == gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    assert buffer.action_space == gym.spaces.Discrete(3)
    told = buffer.describe()
    assert (told.num_episodes, told.num_terminated, told.num_truncated, told.num_unfinished) == (2, 1, 1, 1)


def assert_is_the_whole_log(buffer: ReplayBuffer) -> None:
    """Assert that the buffer was made with the successors, so that nothing is missing."""
    rows = held(buffer)
    assert {obs: row[2] for obs, row in rows.items()} == {0: 1, 1: 2, 10: 11, 11: 12, 12: 13, 20: 21, 21: 22}
    assert rows[12] == (0, 32.0, 13.0, False, True, 0.5)
    assert rows[21] == (0, 128.0, 22.0, False, False, 0.5)
