"""Rollouts of envs that took different numbers of steps: what they hold, and what replay buffers make of them."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rltrainer.data import RolloutBuffer
from rltrainer.errors import ReplayBufferError
from tests.unit.data.reference import OBS, Cell, Reference, World, as_obs, assert_holds, columns, make_buffer
from tests.unit.data.reference import cell as of

ACTION = gym.spaces.Discrete(5, start=2)


def add(buffer: RolloutBuffer, envs: list[int], cells: list[Cell], valid: bool = True, **changes: Any) -> None:
    obs, action, reward, *rest = columns(cells)
    values: dict[str, Any] = {"action": action, "reward": reward, **changes}
    step = obs, values["action"], values["reward"], *rest, None
    buffer.add_steps(np.array(envs), step, np.full(len(cells), valid))


def cell(obs: int, end: str = "") -> Cell:
    return of(obs, end=end, action=2)


def test_envs_with_fewer_cells_hold_still() -> None:
    buffer = RolloutBuffer(1, 3, OBS, ACTION)
    add(buffer, [0, 2], [cell(1), cell(31)])
    add(buffer, [0], [cell(2)])
    add(buffer, [2, 0], [cell(32, "t"), cell(3)])
    buffer.pad(as_obs([4, 20, 50]))
    assert len(buffer) == 5
    rollout = buffer.rollout()
    assert rollout.valid.T.tolist() == [[True, True, True], [False, False, False], [True, True, False]]
    assert rollout.obs[..., 0].T.tolist() == [[1, 2, 3], [20, 20, 20], [31, 32, 50]]
    assert rollout.last_obs[:, 0].tolist() == [4, 20, 50]
    assert rollout.next_obs[..., 0].T.tolist() == [[2, 3, 4], [20, 20, 20], [32, 33, 50]]
    assert rollout.action.unique().tolist() == [2], "an action of the space in every cell"
    assert rollout.reward.T.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]
    assert rollout.idle.T.tolist() == [[False, False, False], [True, True, True], [False, False, True]]
    assert rollout.ends.T[0].tolist() == [False, False, False]
    assert bool(rollout.ends[1, 2])


def test_nothing_of_the_rollout_before_is_seen_in_the_rest() -> None:
    buffer, stream = RolloutBuffer(4, 2, OBS, ACTION), object()
    buffer.begin(stream)
    assert buffer._starts.all()
    for i in range(3):
        add(buffer, [0], [Cell(i, 2, np.nan, i + 1, i == 2, False)])
    buffer.begin(stream)
    add(buffer, [1], [cell(7)])
    add(buffer, [1], [cell(8)])
    buffer.pad(as_obs([3, 9]))
    rollout = buffer.rollout()
    assert buffer.is_finite()
    assert rollout.valid.T.tolist() == [[False, False], [True, True]]
    assert rollout.obs[:, 0, 0].tolist() == [3, 3]
    assert not rollout.done.any()
    assert rollout.starts.tolist() == [False, True], "env 1 had no cell before"


@pytest.mark.parametrize("changes", [{"reward": np.zeros(3, np.float32)}, {"action": np.zeros(2, np.complex64)}])
def test_values_that_do_not_fit(changes: dict[str, Any]) -> None:
    with pytest.raises(ReplayBufferError, match=r"^RolloutBuffer.(reward|action): expected .* of shape \(2,\), got"):
        add(RolloutBuffer(4, 3, OBS, ACTION), [0, 2], [cell(1), cell(31)], **changes)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_replay_buffer_goes_on_after_idle_cells(seed: int, n_step: int) -> None:
    """Random envs step in random collections of random lengths, a broken-off cell here and there."""
    rng, num_envs = np.random.default_rng(seed), 3
    buffer, reference = make_buffer(60, num_envs), Reference(20, num_envs)
    worlds = [World(100 * seed + n, 1) for n in range(num_envs)]
    for n, world in enumerate(worlds):
        world.number += 10_000 * n
        world.restart()
    rollouts, stream = RolloutBuffer(2, num_envs, OBS, gym.spaces.Discrete(5)), object()
    for _ in range(40):
        rollouts.begin(stream)
        for _ in range(rng.integers(1, 8)):
            n = int(rng.choice(num_envs, p=[0.7, 0.2, 0.1]))
            is_broken = rng.random() < 0.05
            if is_broken:  # as of an env that was restarted: its trace ends before a cell without a transition
                now = worlds[n].obs[0]
                add(rollouts, [n], [Cell(now, 0, 0.0, now, False, True)], valid=False)
                reference.end_trajectory(n)
                worlds[n].restart()
                continue
            (step,), _ = worlds[n].step()
            add(rollouts, [n], [step])
            reference.add(n, step)
        rollouts.pad(as_obs([world.obs[0] for world in worlds]))
        buffer.add_rollout(rollouts.rollout(), token=stream)
    assert_holds(buffer, reference, n_step)
    assert torch.equal(torch.tensor(buffer._ring.sizes()), torch.tensor([len(s) for s in reference.streams]))
