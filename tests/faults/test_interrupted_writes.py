"""An interrupt in the middle of a write into a buffer leaves all of it, or nothing: nobody trains on half a row."""

import copy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
import rltrainer.data
from rltrainer.data.storage import PackedRowStorage, RowStorage

FOLDER = str(Path(rltrainer.data.__file__).parent)
OBS = gym.spaces.Box(-1, 1000, (2,), np.float32)
ACTION = gym.spaces.Discrete(2)


class Writer:
    """Writes rows of two envs: observation (episode, step), reward 1; episodes of 3 and 4 steps."""

    def __init__(self) -> None:
        self.step = np.zeros(2)
        self.episode = np.array([0.0, 500.0])

    def row(self) -> tuple[Any, ...]:
        obs = np.stack([self.episode, self.step], 1).astype(np.float32)
        self.step += 1
        next_obs = np.stack([self.episode, self.step], 1).astype(np.float32)
        done = self.step >= [3, 4]
        self.episode, self.step = self.episode + done, np.where(done, 0, self.step)
        return obs, np.ones(2, np.int64), np.ones(2, np.float32), next_obs, done, np.zeros(2, np.bool_)

    def rollout(self, num_rows: int) -> rl.Rollout:
        buffer = rl.RolloutBuffer(1, 2, OBS, ACTION)
        for _ in range(num_rows):
            buffer.add(*self.row())
        return buffer.rollout()


def interrupted(call: Callable[[], Any], line: int) -> bool:
    """Make a call, with an interrupt at this line that it executes in the room of the data; return if there was one."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line":
            count += 1
            if count == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def contents(buffer: rl.ReplayBuffer) -> list[torch.Tensor]:
    ring = buffer._ring
    cells = torch.cat([torch.arange(0), *ring.all_slots(1000)])
    batch = ring.transitions(cells, 3, 1.0)
    return [batch.obs, batch.next_obs, batch.reward, batch.terminated, cells]


def is_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


class PackedOnHost(PackedRowStorage):
    """Packed rows without a device."""

    def _send(self, slots: Any, rows: torch.Tensor) -> None:
        self._memory.flatten(0, 1).index_copy_(0, torch.from_numpy(slots), rows)


@pytest.mark.parametrize("kind", [rl.ReplayBuffer, rl.PrioritizedReplayBuffer])
@pytest.mark.parametrize(("num_rows", "storage"), [(1, RowStorage), (3, RowStorage), (1, PackedOnHost)])
@pytest.mark.parametrize("num_before", [0, 23])
def test_a_write_is_whole_wherever_it_is_interrupted(
    kind: Any, num_rows: int, storage: Any, num_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    continues = num_before > 0 and storage is PackedOnHost  # then its rows hold the observations already
    monkeypatch.setattr("rltrainer.data.ring.RowStorage", storage)
    writer, stream = Writer(), object()
    before = kind(16, OBS, ACTION, num_envs=2, seed=1)
    for _ in range(num_before):
        before.add(*writer.row(), token=stream)

    def write(buffer: rl.ReplayBuffer, value: Any) -> None:
        if num_rows == 1:
            buffer.add(*value, token=buffer._ring.token if continues else object())
        else:
            buffer.add_rollout(value, token=object())

    value = writer.row() if num_rows == 1 else writer.rollout(num_rows)
    after = copy.deepcopy(before)
    write(after, value)
    outcomes, expected = set(), {False: contents(before) if num_before else None, True: contents(after)}
    more, line = writer.rollout(4), 0
    while True:
        line += 1
        buffer = copy.deepcopy(before)
        if not interrupted(partial(write, buffer, value), line):
            break
        is_stored = len(buffer) == len(after) and not (num_before and is_same(contents(buffer), expected[False]))  # type: ignore[arg-type]  # there is one
        outcomes.add(is_stored)
        if is_stored or num_before:
            assert is_same(contents(buffer), expected[is_stored]), line  # type: ignore[arg-type]  # there is one
        buffer.add_rollout(more, token=object())
        batch = buffer.sample(200, n_step=3, gamma=1.0)
        assert (batch.next_obs[:, 0] == batch.obs[:, 0]).all(), line
        assert torch.equal(batch.reward, (batch.next_obs - batch.obs)[:, 1]), line
    assert line > 20
    assert outcomes == {False, True}


def test_a_rollout_that_was_interrupted_is_gone_and_the_next_is_whole() -> None:
    line = 0
    while True:
        line += 1
        writer, buffer = Writer(), rl.RolloutBuffer(1, 2, OBS, ACTION)
        if not interrupted(lambda: [buffer.add(*writer.row()) for _ in range(9)], line):  # noqa: B023  # called at once
            break
        buffer.begin(object())
        writer = Writer()
        for _ in range(9):
            buffer.add(*writer.row())
        rollout = buffer.rollout()
        assert rollout.obs[:, 0, 1].tolist() == [0, 1, 2] * 3, line
        assert rollout.obs[:, 1, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0], line
        assert rollout.final_obs[:, 1].tolist() == [3, 4, 3, 4, 3], line
    assert line > 100
