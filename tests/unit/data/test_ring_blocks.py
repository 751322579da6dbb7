"""Rows of a buffer in blocks: which changed since the last save, and what they held at the moment of this one."""

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.checkpoint.store import SavedBlocks
from rltrainer.data import ReplayBuffer, replay_file
from rltrainer.data.replay_file import RingBlocks, rows_per_block
from rltrainer.errors import ReplayBufferError
from rltrainer.types import State
from tests.unit.data.reference import ACTION, OBS, Cell, World, add_step, make_buffer, make_rollout
from tests.unit.data.test_replay_file import same

ROW = 22
"""Bytes of a cell: two floats of observation, an integer, a reward, two flags."""


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks of some rows of one env."""
    monkeypatch.setattr(replay_file, "MIN_NBYTES", 3 * ROW)


class Run:
    """A buffer that is written at random, in every way there is."""

    def __init__(self, seed: int, num_envs: int, capacity: int = 40) -> None:
        self.rng = np.random.default_rng(seed)
        self.buffer = make_buffer(capacity, num_envs)
        self.world = World(seed, num_envs, p_invalid=0.5)

    def go_on(self, num_steps: int) -> None:
        for _ in range(num_steps):
            kind = self.rng.random()
            if kind < 0.6:
                add_step(self.buffer, None, self.world.step()[0])
            elif kind < 0.9:  # envs fall out of step
                rows = [self.world.step() for _ in range(int(self.rng.integers(1, 4)))]
                self.buffer.add_rollout(make_rollout(rows))
            elif kind < 0.98:
                self.buffer.break_trace(self.rng.random(self.world.num_envs) < 0.5)
                self.world.restart()
            else:
                self.buffer.clear()
                self.world.restart()


class Save:
    """What a store does: takes the blocks that changed, and has the others from before."""

    def __init__(self, buffer: ReplayBuffer, before: "Save | None" = None) -> None:
        self.state = buffer.state_in_blocks()
        self.expected = copy.deepcopy(buffer.state_dict())
        self.blocks: RingBlocks = self.state["blocks"]
        self.changed = self.blocks.changed_since(None if before is None else before.blocks.mark)
        known = [] if before is None else before.contents[: len(self.blocks)]
        self.contents: list[Any] = known + [None] * (len(self.blocks) - len(known))
        self.blocks.hold(self.changed)

    def take(self, num_blocks: int = 1000) -> None:
        for block in self.changed[:num_blocks]:
            self.contents[block] = self.blocks.take(block)
        self.changed = self.changed[num_blocks:]

    def check(self, like: ReplayBuffer) -> None:
        """Load what was taken, and compare it with the whole state of that moment."""
        loaded, expected = (make_buffer(like.capacity, like.num_envs) for _ in range(2))
        loaded.load_state_dict(self.state | {"blocks": self.contents})
        expected.load_state_dict(self.expected)
        assert same(loaded, expected, ignored="")


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_blocks_that_changed_and_those_from_before_are_the_whole(seed: int, num_envs: int) -> None:
    run, save = Run(seed, num_envs), None
    for i in range(60):
        save = Save(run.buffer, save)
        save.take(int(run.rng.integers(4)))
        run.go_on(int(run.rng.integers(1, 3 + i)))  # up to more than once around
        save.take()
        save.check(run.buffer)
        assert run.buffer._ring.before_write is None


def test_few_blocks_change_with_few_rows() -> None:
    run = Run(0, 1, capacity=300)
    while len(run.buffer) < 300:
        run.go_on(1)
    assert rows_per_block(run.buffer._ring) == 3
    save = Save(run.buffer)
    assert len(save.changed) == len(save.blocks) == 101  # 301 rows
    save.take()
    before = run.buffer._ring.written.copy()
    for _ in range(30):
        add_step(run.buffer, None, run.world.step()[0])
    assert (run.buffer._ring.written - before).tolist() == [30]
    # The rows of 30 cells, of the cell before them and of the head: 32 rows in 11 or 12 blocks.
    assert len(Save(run.buffer, save).changed) in (11, 12)


def test_what_was_not_written_has_not_changed_but_where_the_trace_may_be_broken() -> None:
    run = Run(1, 2, capacity=200)
    run.go_on(150)
    save = Save(run.buffer)
    save.take()
    assert len(Save(run.buffer, save).changed) <= 4  # the newest cell and the head of two envs


def test_those_that_are_overwritten_first_are_taken_first() -> None:
    buffer, world = make_buffer(12), World(0, 1)
    for _ in range(16):
        add_step(buffer, None, world.step()[0])
    # 13 rows in blocks of 3; the head is in row 16 % 13 = 3, of block 1.
    assert Save(buffer).changed == [1, 2, 3, 4, 0]


def test_nothing_is_copied_but_what_is_overwritten_before_it_is_taken() -> None:
    buffer, world = make_buffer(12), World(0, 1)
    for _ in range(16):
        add_step(buffer, None, world.step()[0])
    save = Save(buffer)
    blocks = save.blocks
    assert blocks._copies == {}
    add_step(buffer, None, world.step()[0])  # the cell before, in row 2; the cell in row 3, the head in row 4
    assert set(blocks._copies) == {0, 1}
    for _ in range(2):
        add_step(buffer, None, world.step()[0])
    assert set(blocks._copies) == {0, 1, 2}  # row 6
    save.take()
    assert blocks._copies == {}
    save.check(buffer)
    blocks.release()


def test_released_blocks_cost_nothing_any_more() -> None:
    buffer, world = make_buffer(12), World(0, 1)
    for _ in range(16):
        add_step(buffer, None, world.step()[0])
    save = Save(buffer)
    assert buffer._ring.before_write is not None
    save.blocks.release()
    assert buffer._ring.before_write is None
    add_step(buffer, None, world.step()[0])
    assert save.blocks._copies == {}


def test_a_second_save_at_once_copies_what_it_holds() -> None:
    run = Run(3, 2)
    run.go_on(40)
    first = Save(run.buffer)
    run.go_on(3)
    second = Save(run.buffer)
    run.go_on(60)
    for save in (second, first):
        save.take()
        save.check(run.buffer)
    assert run.buffer._ring.before_write is None


def test_a_thread_takes_what_was_there_while_the_buffer_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_file, "MIN_NBYTES", 3000 * ROW)
    space = (OBS, ACTION)
    buffer = ReplayBuffer(300_000, *space, num_envs=1000, seed=0)

    def add(value: float) -> None:
        full = np.full(1000, value, np.float32)
        ended = np.random.default_rng(int(value)).random(1000) < 0.2
        obs = np.stack([full, -full], 1)
        buffer.add(obs, np.zeros(1000, np.int64), full, obs + 0.5, ended, np.zeros(1000, np.bool_))

    for step in range(310):
        add(step)
    for round_ in range(3):
        save = Save(buffer)
        thread = threading.Thread(target=save.take)
        thread.start()
        for step in range(400):
            add(10_000 * round_ + step)
        thread.join()
        other = ReplayBuffer(300_000, *space, num_envs=1000, seed=1)
        other.load_state_dict(save.state | {"blocks": save.contents})
        expected = ReplayBuffer(300_000, *space, num_envs=1000, seed=1)
        expected.load_state_dict(save.expected)
        assert same(other, expected, ignored="")


def test_a_store_of_final_observations_may_grow_while_a_block_waits() -> None:
    buffer = make_buffer(60)
    for i in range(70):
        add_step(buffer, None, [Cell(2 * i, 0, 0.0, 2 * i + 1, True, False)])
    buffer.clear()
    for i in range(10):  # few ends: the store is small again only in a new buffer
        add_step(buffer, None, [Cell(2 * i, 0, 0.0, 2 * i + 1, True, False)])
    save = Save(buffer)
    for i in range(100, 180):
        add_step(buffer, None, [Cell(2 * i, 0, 0.0, 2 * i + 1, True, False)])
    save.take()
    save.check(buffer)


def test_copies_and_pickles_do_not_take_part_in_a_save() -> None:
    run = Run(0, 2)
    run.go_on(30)
    save = Save(run.buffer)
    for other in (copy.deepcopy(run.buffer), pickle.loads(pickle.dumps(run.buffer))):
        assert other._ring.before_write is None
        add_step(other, None, run.world.step()[0])
    assert save.blocks._copies == {}
    save.take()
    save.check(run.buffer)


@pytest.mark.parametrize("kind", ["prioritized", "hindsight", "mixed", "stack"])
def test_every_kind_of_buffer(kind: str) -> None:
    def make() -> Any:
        if kind == "prioritized":
            return rl.PrioritizedReplayBuffer(40, OBS, ACTION, 2, seed=3)
        return rl.MixedBuffer(make_buffer(40, 2), offline) if kind == "mixed" else make_buffer(40, 2)

    run, offline = Run(7, 2), Run(8, 2).buffer
    for _ in range(5):
        add_step(offline, None, run.world.step()[0])
    run.buffer = make()
    run.go_on(50)
    if kind == "prioritized":
        batch = run.buffer.sample(20)
        run.buffer.update_priorities(batch.index, torch.rand(20))
    save = Save(run.buffer)
    state = {key: copy.deepcopy(value) for key, value in save.state.items() if key != "blocks"}
    draws = copy.deepcopy(run.buffer).sample(100)
    run.go_on(30)
    save.take()
    other = make()
    other.load_state_dict(state | {"blocks": save.contents})
    again = other.sample(100)
    assert torch.equal(again.obs, draws.obs)
    assert torch.equal(again.index, draws.index)
    assert torch.equal(again.weight, draws.weight)


def test_it_is_what_a_store_asks_for() -> None:
    assert isinstance(make_buffer(4).state_in_blocks()["blocks"], SavedBlocks)
    assert not isinstance({}, SavedBlocks)
    assert not isinstance(torch.zeros(2), SavedBlocks)


def damaged(state: State, kind: str) -> None:
    blocks = state["blocks"]
    if kind == "no list":
        state["blocks"] = {}
    elif kind == "none":
        state["blocks"] = []
    elif kind == "numbers":
        state["blocks"] = [1, 2]
    elif kind == "one missing":
        blocks.pop()
    elif kind == "one too many":
        blocks.append(blocks[-1])
    elif kind == "swapped":
        blocks[0], blocks[-1] = blocks[-1], blocks[0]
    elif kind == "no data":
        del blocks[0]["data"]
    elif kind == "no column":
        del blocks[2]["data"]['["reward"]']
    elif kind == "an end elsewhere":
        blocks[1]["final_index"] = torch.tensor([7])
        blocks[1]["final_obs"] = {'[""]': torch.zeros(1, 2)}
    elif kind == "an action outside":
        blocks[3]["data"]['["action"]'][0] = 9


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("no list", r"blocks: expected states of rows, found \{\}"),
        ("none", r"blocks: expected states of rows, found \[\]"),
        ("numbers", r"blocks: expected states of rows, found \[1, 2\]"),
        ("one missing", "blocks: expected 5 of 3 rows, found 4"),
        ("one too many", "blocks: expected 5 of 3 rows, found 6"),
        ("swapped", "blocks: expected 13 of 1 rows, found 5"),
        ("no data", "blocks: expected 13 of 0 rows, found 5"),
        ("no column", r"blocks\.2\.data: expected the leaves"),
        ("an end elsewhere", r"blocks\.1\.final_obs: expected the leaves"),
        ("an action outside", r"blocks\.3\.action: must lie in Discrete\(5\); transition 0 is 9"),
    ],
)
def test_blocks_that_are_no_state(kind: str, text: str) -> None:
    buffer, world = make_buffer(12), World(0, 1)
    for _ in range(20):
        add_step(buffer, None, world.step()[0])
    save = Save(buffer)
    save.take()
    state = save.state | {"blocks": save.contents}
    damaged(state, kind)
    before = copy.deepcopy(buffer.state_dict())
    with pytest.raises(ReplayBufferError, match=text):
        buffer.load_state_dict(state)
    assert str(before) == str(buffer.state_dict())


def test_a_block_has_a_256th_of_a_large_buffer_and_never_too_much() -> None:
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.undo()
    ring = ReplayBuffer(1_000_000, OBS, ACTION)._ring
    assert replay_file.MAX_NBYTES == 2**25
    assert rows_per_block(ring) == -(-1_000_001 // 256)
