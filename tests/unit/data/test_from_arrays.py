"""Logged data: which rows are kept, what follows them, and what is invalid."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rltrainer.data import ReplayBuffer
from rltrainer.errors import ReplayBufferError, SpaceError
from tests.unit.data.reference import ACTION, OBS, as_obs, found

NAMES = ("observations", "actions", "rewards", "terminations", "truncations")


def arrays(obs: Any, terminated: Any = (), truncated: Any = (), **changes: Any) -> dict[str, Any]:
    """Return columns with rewards 1, 2, 4, ...; `terminated` and `truncated` name rows."""
    rows = np.arange(len(obs))
    columns = (as_obs(obs), rows % 5, 2.0**rows, np.isin(rows, terminated), np.isin(rows, truncated))
    spaces = {"observation_space": OBS, "action_space": ACTION, "seed": 0}
    return dict(zip(NAMES, columns, strict=True)) | spaces | changes


def transitions(buffer: ReplayBuffer, n_step: int = 1) -> dict[int, tuple[float, ...]]:
    return {obs: values[1:] for obs, values in found(buffer.sample(300, n_step=n_step, gamma=0.5)).items()}


def test_successors_are_the_next_rows(caplog: pytest.LogCaptureFixture) -> None:
    # 0 1 2 terminate; 10 11 | 12 truncated, successor unknown; 20 21 | 22 last, successor unknown.
    buffer = ReplayBuffer.from_arrays(**arrays([0, 1, 2, 10, 11, 12, 20, 21, 22], terminated=[2], truncated=[5]))
    assert {obs: (reward, after, discount) for obs, (reward, after, _, _, discount) in transitions(buffer).items()} == {
        0: (1, 1, 0.5),
        1: (2, 2, 0.5),
        2: (4, 2, 0.0),  # a placeholder: nothing is bootstrapped
        10: (8, 11, 0.5),
        11: (16, 12, 0.5),
        20: (64, 21, 0.5),
        21: (128, 22, 0.5),
    }
    assert [(r.name, r.levelname, r.message) for r in caplog.records] == [
        ("rltrainer", "WARNING", "from_arrays: 2 of 9 transitions have no known successor and are left out")
    ]
    # Windows stop before the rows that were left out.
    two = transitions(buffer, 2)
    assert two[10] == (8 + 16 / 2, 12, False, False, 0.25)
    assert two[11] == (16, 12, False, False, 0.5)
    assert two[1] == (2 + 4 / 2, 2, True, False, 0.0)


def test_truncated_rows_that_follow_each_other() -> None:
    buffer = ReplayBuffer.from_arrays(**arrays([0, 1, 2, 3, 4], terminated=[0, 4], truncated=[2, 3]))
    assert {obs: values[1] for obs, values in transitions(buffer).items()} == {0: 0, 1: 2, 4: 4}


def test_given_successors_end_episodes_and_cut_traces(caplog: pytest.LogCaptureFixture) -> None:
    data = arrays([0, 1, 10, 20, 21], truncated=[1], next_observations=as_obs([1, 2, 11, 21, 22]))
    buffer = ReplayBuffer.from_arrays(**data)
    assert transitions(buffer, 2) == {
        0: (1 + 2 / 2, 2, False, True, 0.25),
        1: (2, 2, False, True, 0.5),
        10: (4, 11, False, False, 0.5),
        20: (8 + 16 / 2, 22, False, False, 0.25),
        21: (16, 22, False, False, 0.5),
    }
    assert not caplog.records


def test_the_first_and_the_last_row_may_end() -> None:
    buffer = ReplayBuffer.from_arrays(**arrays([0, 5], terminated=[0, 1], next_observations=as_obs([1, 6])))
    assert transitions(buffer) == {0: (1, 1, True, False, 0.0), 5: (2, 6, True, False, 0.0)}
    one = ReplayBuffer.from_arrays(**arrays([3], next_observations=as_obs([4])))
    assert transitions(one) == {3: (1, 4, False, False, 0.5)}


def test_what_is_added_later_does_not_continue_the_log() -> None:
    buffer = ReplayBuffer.from_arrays(**arrays([0, 1], next_observations=as_obs([1, 2])))
    no = np.zeros(1, np.bool_)
    buffer.add(as_obs([7]), np.zeros(1, int), np.zeros(1), as_obs([8]), no, no)
    assert {obs: values[1] for obs, values in transitions(buffer).items()} == {1: 2, 7: 8}


def test_tensors_lists_trees_and_numbers_for_flags() -> None:
    space = gym.spaces.Dict({"a": OBS, "b": gym.spaces.Discrete(4, start=1)})
    obs = {"b": [1, 2, 4], "a": torch.from_numpy(as_obs([0, 1, 2])).double()}
    data = arrays([0, 1, 2], observations=obs, observation_space=space, terminations=[0, 0, 1.0])
    after = {"a": as_obs([1, 2, 3]), "b": np.array([2, 3, 1], np.int32)}
    buffer = ReplayBuffer.from_arrays(**{**data, "truncations": np.zeros(3, np.uint8)}, next_observations=after)
    batch = buffer.sample(60, n_step=2, gamma=0.5)
    # Row 1 is followed by a row that differs in leaf b only: a boundary.
    expected = {1: (1 + 2 / 2, 3), 2: (2, 3), 4: (4, 1)}
    rows = zip(batch.obs["b"].tolist(), batch.reward.tolist(), batch.next_obs["b"].tolist(), strict=True)
    assert {b: (reward, next_b) for b, reward, next_b in rows} == expected


def test_read_only_arrays_fill_a_buffer_with_the_seed() -> None:
    data = arrays([0, 1, 2], terminated=[2])
    for name in NAMES:
        data[name].flags.writeable = False
    buffer = ReplayBuffer.from_arrays(**data)
    assert buffer.capacity == len(buffer) == 3
    assert buffer.generator.initial_seed() == 0


IMAGE = gym.spaces.Box(0, 255, (2,), np.uint8)
Space, Data = SpaceError, ReplayBufferError
BOX = gym.spaces.Box(-1, 1, (1,), np.float32)
DICT, UNEQUAL = gym.spaces.Dict(a=OBS, b=OBS), {"b": as_obs([0, 1, 2]), "a": as_obs([0])}
NAN = np.array([[0, 0], [0, np.nan], [0, 0]])


def test_logged_observations_may_leave_a_box() -> None:
    data = arrays([50, 60], terminated=[1], observation_space=gym.spaces.Box(-1, 1, (2,), np.float32))
    assert len(ReplayBuffer.from_arrays(**data)) == 2
