"""Rollout buffers: rows in time order, true successors, boundaries, growth, state."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.errors import ReplayBufferError, SpaceError
from tests.unit.data.reference import ACTION, OBS, Cell, World, as_obs, cell, columns, make_rollout, raises


def add(buffer: RolloutBuffer, cells: list[Cell], valid: Any = None, extra: Any = None) -> None:
    obs, action, *rest = columns(cells)
    buffer.add(obs, torch.from_numpy(action), *rest, valid, extra)


def test_rows_and_successors_worked_by_hand() -> None:
    buffer = RolloutBuffer(3, 2, OBS, ACTION)
    add(buffer, [cell(0, 1.0, action=1), cell(100, 2.0, end="t", action=2)])
    add(buffer, [cell(1, 4.0, end="u", action=3), cell(110, 8.0, action=4)])
    add(buffer, [cell(20, 16.0), cell(111, 32.0, end="b", action=1)])
    rollout = buffer.rollout()
    assert rollout.obs[..., 0].tolist() == [[0, 100], [1, 110], [20, 111]]
    assert rollout.next_obs[..., 0].tolist() == [[1, 101], [2, 111], [21, 112]]
    assert rollout.last_obs[:, 0].tolist() == [21, 112]
    assert rollout.action.tolist() == [[1, 2], [3, 4], [0, 1]]
    assert rollout.reward.tolist() == [[1, 2], [4, 8], [16, 32]]
    assert rollout.terminated.tolist() == [[False, True], [False, False], [False, True]]
    assert rollout.truncated.tolist() == [[False, False], [True, False], [False, True]]
    assert rollout.valid.all()
    assert rollout.final_index.tolist() == [1, 2, 5]
    assert rollout.final_obs[:, 0].tolist() == [101, 2, 112]
    assert len(buffer) == 6


@pytest.mark.parametrize("num_steps", [1, 4, 50])
def test_growth_changes_nothing(num_steps: int) -> None:
    # 40 steps of 3 envs with about 30 episode ends each: both the rows and the final observations grow.
    world, buffer = World(0, 3, 0.5), RolloutBuffer(num_steps, 3, OBS, ACTION)
    rows = [world.step() for _ in range(40)]
    for cells, valid in rows:
        add(buffer, cells, np.array(valid))
    rollout, expected = buffer.rollout(), make_rollout(rows)
    for name in ("obs", "action", "reward", "terminated", "truncated", "valid", "last_obs", "final_obs", "final_index"):
        assert torch.equal(getattr(rollout, name), getattr(expected, name)), name
    assert len(expected.final_index) > 16
    assert torch.equal(rollout.next_obs, expected.next_obs)
    assert len(buffer) == sum(sum(valid) for _, valid in rows)


def test_clear_starts_again() -> None:
    buffer = RolloutBuffer(4, 1, OBS, ACTION)
    add(buffer, [cell(0, end="t")])
    buffer.clear()
    assert len(buffer) == 0
    with pytest.raises(ReplayBufferError, match="RolloutBuffer.rollout: the buffer is empty. Collect first."):
        buffer.rollout()
    add(buffer, [cell(5)])
    rollout = buffer.rollout()
    assert rollout.obs[..., 0].tolist() == [[5]]
    assert rollout.final_index.tolist() == []
    assert rollout.next_obs[..., 0].tolist() == [[6]]


def test_a_cut_keeps_the_successors_once() -> None:
    buffer = RolloutBuffer(4, 3, OBS, ACTION)
    buffer.end_trajectory()  # nothing to break
    add(buffer, [cell(0), cell(10, end="t"), cell(20)])
    buffer.end_trajectory(np.array([True, True, False]))
    buffer.end_trajectory(np.array([True, False, False]))
    add(buffer, [cell(n) for n in (50, 60, 21)])
    rollout = buffer.rollout()
    assert sorted(rollout.final_index.tolist()) == [0, 1]
    assert rollout.next_obs[..., 0].tolist() == [[1, 11, 21], [51, 61, 22]]
    buffer.end_trajectory()
    assert sorted(buffer.rollout().final_index.tolist()) == [0, 1, 3, 4, 5]


def test_extras_are_columns_that_must_be_filled() -> None:
    buffer = RolloutBuffer(1, 2, OBS, ACTION, extra={"log_prob": ((), torch.float32)})
    add(buffer, [cell(0)] * 2, extra={"log_prob": torch.tensor([-1.0, -2.0])})
    with raises(ReplayBufferError, "RolloutBuffer.extra: expected a dict with the keys ['log_prob'], got"):
        add(buffer, [cell(0)] * 2)
    assert buffer.rollout().extra["log_prob"].tolist() == [[-1.0, -2.0]]


def test_a_step_that_does_not_fit_changes_nothing() -> None:
    buffer = RolloutBuffer(4, 2, OBS, ACTION)
    add(buffer, [cell(0, end="t"), cell(10)])
    with raises(ReplayBufferError, "RolloutBuffer.obs: expected float32 of shape (2, 2), got float32 of shape (1, 2)"):
        add(buffer, [cell(1, end="t")])
    with pytest.raises(ReplayBufferError, match="RolloutBuffer.valid: expected bool of shape"):
        add(buffer, [cell(1, end="t")] * 2, valid=[True])
    assert buffer.rollout().next_obs[..., 0].tolist() == [[1, 11]]


@pytest.mark.parametrize("buffer_class", [RolloutBuffer, ReplayBuffer])
@pytest.mark.parametrize(("value", "dtype"), [(256, np.int64), (-255, np.int16), (255, np.uint8)])
@pytest.mark.parametrize("make", [np.array, lambda value: torch.from_numpy(np.array(value))], ids=["array", "tensor"])
def test_flags_that_int8_cannot_hold_are_refused(buffer_class: Any, value: int, dtype: Any, make: Any) -> None:
    buffer = buffer_class(4, observation_space=OBS, action_space=gym.spaces.MultiBinary(2), num_envs=1)
    no, obs = np.zeros(1, np.bool_), as_obs([0])
    buffer.add(obs, make(np.array([[1, 0]], dtype)), np.zeros(1), obs, no, no)
    text = f"{buffer_class.__name__}.action: must lie in MultiBinary(2); got {value} ({np.dtype(dtype)})"
    with raises(SpaceError, text):
        buffer.add(obs, make(np.array([[value, 0]], dtype)), np.zeros(1), obs, no, no)
    assert len(buffer) == 1


def test_views_follow_the_memory_when_it_grows() -> None:
    buffer = RolloutBuffer(1, 1, OBS, ACTION)
    row: Any = None
    for numbers in ([1], [2, 3], [4]):
        buffer.clear()
        for number in numbers:
            add(buffer, [cell(number, float(number))])
        assert buffer.rollout().reward.flatten().tolist() == numbers
        row = buffer.single_row()
        assert (row is None) == (len(numbers) > 1)
    assert (row[0].tolist(), row[2].tolist(), row[3].tolist()) == ([[4, -4]], [4], [[5, -5]])


def test_rollouts_of_one_row_look_at_the_same_memory_and_share_no_dict() -> None:
    space = gym.spaces.Dict(x=gym.spaces.Box(-1, 1, (2,), np.float32))
    buffer = RolloutBuffer(1, 2, space, gym.spaces.Discrete(2))
    found = []
    for step in range(3):
        buffer.clear()
        obs = {"x": np.full((2, 2), step / 10, np.float32)}
        ended = np.array([False, step == 1])
        buffer.add(obs, np.zeros(2, np.int64), np.full(2, float(step)), obs, ended, np.zeros(2, np.bool_))
        rollout = buffer.rollout()
        assert list(rollout.obs) == ["x"]
        assert rollout.extra == {}
        found.append((rollout.reward.tolist(), rollout.final_index.tolist(), rollout.obs["x"][0, 0, 0].item()))
        rollout.obs["y"] = rollout.extra["y"] = rollout.reward
    assert found == [
        ([[0.0, 0.0]], [], 0.0),
        ([[1.0, 1.0]], [1], pytest.approx(0.1)),
        ([[2.0, 2.0]], [], pytest.approx(0.2)),
    ]
    again, copied = buffer.rollout(), copy.deepcopy(buffer)
    copied.add(obs, np.zeros(2, np.int64), np.full(2, 9.0), obs, ended, ended)  # grows, and its memory is its own
    assert copied.rollout().reward.tolist() == [[2.0, 2.0], [9.0, 9.0]]
    assert again.reward.tolist() == [[2.0, 2.0]]


def test_a_rollout_that_was_gathered_elsewhere_is_held() -> None:
    world, source, buffer = World(1, 3, 0.5), RolloutBuffer(1, 3, OBS, ACTION), RolloutBuffer(2, 3, OBS, ACTION)
    for num_rows in (2, 30, 5):
        source.clear()
        for _ in range(num_rows):
            cells, valid = world.step()
            add(source, cells, np.array(valid))
        buffer.begin(buffer)
        add(buffer, [cell(0)] * 3)
        buffer.hold(source.rollout())
        assert len(buffer) == len(source)
        for name in set(buffer.rollout().__slots__) - {"extra"}:
            assert torch.equal(getattr(buffer.rollout(), name), getattr(source.rollout(), name)), name
    add(buffer, [cell(90)] * 3)  # it does not continue the rollout
    assert buffer.rollout().obs[-1, :, 0].tolist() == [90] * 3
    other = RolloutBuffer(1, 2, OBS, ACTION)
    with pytest.raises(ReplayBufferError, match=r"RolloutBuffer\.hold: expected a rollout of 2 envs, got one of 3"):
        other.hold(source.rollout())
