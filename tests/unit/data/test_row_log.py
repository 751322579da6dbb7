"""Rows of a buffer as a log: what is new since the last save, and that all files together hold the whole buffer."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.data import ReplayBuffer, buffer_state
from rltrainer.data.buffer_state import RowFile, RowLog
from rltrainer.types import State
from tests.unit.data.reference import ACTION, OBS, World, add_step, cell, fill, make_buffer, make_rollout, roam
from tests.unit.data.test_replay_file import same

ROW = 22
"""Bytes of a transition: two floats of observation, an integer, a reward, two flags."""


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a file hold some rows of one env, and none be too small."""
    monkeypatch.setattr(buffer_state, "MIN_NBYTES", 1)
    monkeypatch.setattr(buffer_state, "MAX_NBYTES", 7 * ROW)


class Run:
    """A buffer that is written at random, in every way there is."""

    def __init__(self, seed: int, num_envs: int, capacity: int = 40) -> None:
        self.rng = np.random.default_rng(seed)
        self.buffer = make_buffer(capacity, num_envs)
        self.world = World(seed, num_envs, p_invalid=0.5)

    def go_on(self, num_steps: int, clears: bool = True) -> None:
        for _ in range(num_steps):
            kind = self.rng.random()
            if kind < 0.6:
                add_step(self.buffer, None, self.world.step()[0])
            elif kind < 0.9:  # envs fall out of step
                rows = [self.world.step() for _ in range(int(self.rng.integers(1, 4)))]
                self.buffer.add_rollout(make_rollout(rows))
            elif kind < 0.98 or not clears:
                self.buffer.end_trajectory(self.rng.random(self.world.num_envs) < 0.5)
                self.world.restart()
            else:
                self.buffer.clear()
                self.world.restart()


class Files:
    """Keeps files of rows in memory, as a store keeps them on a disk."""

    def __init__(self) -> None:
        self.contents: dict[RowFile, State] = {}
        self.num_written = self.num_files = 0

    def save(self, buffer: ReplayBuffer) -> State:
        """Return the state of a buffer, with the contents of the files that hold its rows."""
        state = copy.deepcopy({**buffer.logged_state(), "rows": None})
        log = RowLog(buffer._ring)
        files = log.kept(self.contents.__contains__)
        self.num_written = 0
        for rows, _, stop in log.new(files):
            self.num_files += 1
            file = RowFile(f"{self.num_files}", 1, "")
            self.contents[file], files[file] = copy.deepcopy(rows), stop
            self.num_written += len(rows["data"]['["reward"]'])
        log.saved(files)
        return state | {"rows": [self.contents[file] | {"file": file} for file in files] + [log.tail()]}


def loaded(like: ReplayBuffer, state: State) -> ReplayBuffer:
    buffer = make_buffer(like.capacity, like.num_envs)
    buffer.load_state_dict(state)
    return buffer


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_files_of_all_saves_hold_the_whole_buffer(seed: int, num_envs: int) -> None:
    run, files = Run(seed, num_envs), Files()
    for i in range(25):
        state, expected = files.save(run.buffer), copy.deepcopy(run.buffer.state_dict())
        run.go_on(int(run.rng.integers(1, 3 + 2 * i)))  # up to more than once around
        assert same(loaded(run.buffer, state), loaded(run.buffer, expected), ignored="")


def test_each_row_is_written_once_and_files_older_than_the_ring_are_dropped() -> None:
    buffer, world, files = make_buffer(60, 2), World(0, 2), Files()
    for i in range(1, 50):
        roam(buffer, None, world, 5)
        state = files.save(buffer)
        assert files.num_written == (10 if i > 1 else 8)  # the newest row of each env waits
        assert len(state["rows"]) <= 6 * 3 + 3  # up to three files for 5 rows of each env, of which 30 are held
        files.save(buffer)
        assert files.num_written == 0


def test_a_trajectory_that_ends_after_its_save_ends_in_the_next() -> None:
    buffer, files = make_buffer(10), Files()
    fill(buffer, cell(1))
    before = loaded(buffer, files.save(buffer))
    buffer.end_trajectory()
    fill(buffer, cell(7))
    after = loaded(buffer, files.save(buffer))
    fill(before, cell(2))
    for each, next_obs in ((before, [2.0, 3.0]), (after, [2.0, 8.0])):
        cells = torch.tensor([0, 1])
        assert each._ring.transitions(cells, 1, 1.0).next_obs[:, 0].tolist() == next_obs
    assert after._ring.transitions(torch.tensor([0]), 2, 1.0).next_obs[:, 0].tolist() == [2.0]
    assert before._ring.transitions(torch.tensor([0]), 2, 1.0).next_obs[:, 0].tolist() == [3.0]


def test_a_small_file_is_taken_up_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_state, "MIN_NBYTES", 2)
    buffer, world, files = make_buffer(60), World(0, 1), Files()
    for _ in range(6):
        roam(buffer, None, world, 1)
        state = files.save(buffer)
    assert files.num_written == 5  # all of them, again
    assert len(state["rows"]) == 2
    assert same(loaded(buffer, state), buffer, ignored="")


def test_a_file_that_is_gone_lets_all_be_written_again() -> None:
    run, files = Run(5, 2), Files()
    run.go_on(60, clears=False)
    files.save(run.buffer)
    del files.contents[next(iter(files.contents))]
    state = files.save(run.buffer)
    assert files.num_written == len(run.buffer) - 2
    assert same(loaded(run.buffer, state), run.buffer, ignored="")


def test_what_is_loaded_from_files_goes_on_with_them() -> None:
    run, files = Run(5, 2), Files()
    run.go_on(60, clears=False)
    state = files.save(run.buffer)
    again = loaded(run.buffer, state)
    files.save(again)
    assert files.num_written == 0
    again.load_state_dict(copy.deepcopy(run.buffer.state_dict()))  # of which no file is known
    files.save(again)
    assert files.num_written == len(run.buffer) - 2
    again.clear()
    assert again._ring.saved == {}


@pytest.mark.parametrize("kind", ["prioritized", "hindsight", "mixed", "stack"])
def test_every_kind_of_buffer(kind: str) -> None:
    def make() -> Any:
        if kind == "prioritized":
            return rl.PrioritizedReplayBuffer(40, OBS, ACTION, 2, seed=3)
        return rl.MixedBuffer(make_buffer(40, 2), offline) if kind == "mixed" else make_buffer(40, 2)

    run, offline, files = Run(7, 2), Run(8, 2).buffer, Files()
    roam(offline, None, run.world, 5)
    run.buffer = make()
    run.go_on(50)
    files.save(run.buffer)
    run.go_on(5)
    if kind == "prioritized":  # which change after they were stored
        batch = run.buffer.sample(20)
        run.buffer.update_priorities(batch.index, torch.rand(20))
    state = files.save(run.buffer)
    draws = copy.deepcopy(run.buffer).sample(100)
    run.go_on(30)
    other = make()
    other.load_state_dict(state)
    again = other.sample(100)
    assert torch.equal(again.obs, draws.obs)
    assert torch.equal(again.index, draws.index)
    assert torch.equal(again.weight, draws.weight)


def test_views_of_all_rows_take_no_memory() -> None:
    buffer, world = make_buffer(60, 3), World(0, 3)
    roam(buffer, None, world, 30)
    memory = buffer._ring.columns["obs"].leaves[0].tensor.untyped_storage().data_ptr()
    rows = buffer.state_dict()["rows"]
    assert [len(part["data"]['["reward"]']) for part in rows] == [11 * 3, 9 * 3]  # rows 10 to 20, and 0 to 8
    buffer.add_rollout(make_rollout([([cell(0)] * 3, [True, False, False])]))
    rows += buffer.state_dict()["rows"]
    assert all(part["data"]['["obs"]'].untyped_storage().data_ptr() == memory for part in rows)
