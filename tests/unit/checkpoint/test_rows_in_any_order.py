"""Rows of a buffer in checkpoints: whatever was done between two saves, the newest one holds the buffer as it is."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.checkpoint import read_checkpoint
from rltrainer.checkpoint.store import CheckpointStore, live_state
from rltrainer.data import buffer_state

SPACES = gym.spaces.Box(-1e9, 1e9, (2,), np.float32), gym.spaces.Discrete(3)
FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "discount", "index")


def add(buffer: rl.ReplayBuffer, number: int, rng: np.random.Generator) -> None:
    """Add a step of all envs, whose numbers are those of no other step."""
    n = buffer.num_envs
    obs, ends = np.full((n, 2), number, np.float32), rng.random(n) < 0.2
    action, reward = np.zeros(n, np.int64), np.full(n, number, np.float32)
    buffer.add(
        obs=obs, action=action, reward=reward, next_obs=obs + 1, terminated=ends, truncated=np.zeros(n, np.bool_)
    )


def assert_same(one: rl.ReplayBuffer, other: rl.ReplayBuffer) -> None:
    assert len(one) == len(other)
    if len(one):
        for buffer in (one, other):
            buffer.seed(1)
        first, second = one.sample(64), other.sample(64)
        assert all(torch.equal(getattr(first, name), getattr(second, name)) for name in FIELDS)


@pytest.mark.parametrize("seed", range(12))
def test_a_checkpoint_holds_the_buffer_as_it_is(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds, clears, ends trajectories, goes back to older checkpoints, and saves to two directories in turn."""
    monkeypatch.setattr(buffer_state, "MIN_NBYTES", 100)
    rng = np.random.default_rng(seed)
    num_envs = int(rng.choice([1, 2, 3]))
    capacity = num_envs * int(rng.choice([1, 2, 3, 8, 40]))
    buffer = rl.ReplayBuffer(capacity, *SPACES, num_envs=num_envs)
    stores = [CheckpointStore(tmp_path / name, 3, None) for name in "ab"]
    for store in stores:
        store.open()
    number = num_saves = 0
    for action in rng.choice(["add", "clear", "end", "go back", "save"], 30, p=[0.45, 0.05, 0.1, 0.1, 0.3]):
        store = stores[int(rng.integers(2))]
        saved = sorted(store.folder.glob("checkpoint-*"))
        if action == "add":
            for _ in range(int(rng.integers(1, 7))):
                number += 1
                add(buffer, number, rng)
        elif action == "clear":
            buffer.clear()
        elif action == "end":
            buffer.end_trajectory()
        elif action == "go back" and saved:
            buffer.load_state_dict(read_checkpoint(saved[int(rng.integers(len(saved)))])["buffer"])
        elif action == "save":
            num_saves += 1
            store.save({"buffer": live_state(buffer)}, num_saves, None)
            again, newest = rl.ReplayBuffer(capacity, *SPACES, num_envs=num_envs), store.newest_intact()
            assert newest is not None
            again.load_state_dict(read_checkpoint(newest)["buffer"])
            assert_same(buffer, again)
    assert num_saves > 2
    for store in stores:
        store.close()
