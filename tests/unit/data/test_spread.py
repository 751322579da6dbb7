"""Loading into another layout: everything that fits is kept, the newest first, traces whole where they can be."""

from pathlib import Path

import numpy as np
import pytest

from rltrainer.data import ReplayBuffer
from rltrainer.data.transition_sources import newest
from tests.unit.data.reference import (
    Cell,
    Reference,
    World,
    add_step,
    assert_holds,
    cell,
    fill,
    found,
    make_buffer,
    make_rollout,
    roam,
)  # fmt: skip


def one_stream(size: int, episode: int, path: Path) -> Reference:
    """Save a buffer of one env, full of episodes of this length; return what it holds."""
    buffer, reference = make_buffer(size), Reference(size, 1)
    for i in range(size + 7):
        ended = i % episode == episode - 1
        # After an end the next observation is another: 10 i is followed by 10 i + 1 then, else by 10 (i + 1).
        add_step(buffer, reference, [Cell(10 * i, i % 5, i % 3, 10 * i + 1 if ended else 10 * i + 10, ended, False)])
    buffer.save(path)
    return reference


def test_whole_episodes_stay_whole_where_there_is_room(tmp_path: Path) -> None:
    reference = one_stream(96, 6, tmp_path / "b")
    loaded = ReplayBuffer.load(tmp_path / "b", capacity=400, num_envs=4)
    assert_holds(loaded, reference, 6)
    # Cells 7 to 102: a piece of 5, fifteen whole episodes, and the first cell of one.
    assert sorted(loaded.state_dict()["written"].tolist()) == [24, 24, 24, 24]


def test_what_does_not_fit_is_the_oldest_and_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one_stream(100, 6, tmp_path / "b")
    loaded = ReplayBuffer.load(tmp_path / "b", capacity=40, num_envs=4)
    assert len(loaded) == 40
    assert sorted(found(loaded.sample(3000))) == [10 * i for i in range(67, 107)]
    assert caplog.messages == [
        f"ReplayBuffer.load: {tmp_path / 'b'}: 60 of 100 transitions do not fit into a capacity of 40 "
        "and are left out; the newest are kept"
    ]


def test_the_same_envs_keep_their_streams(tmp_path: Path) -> None:
    world, buffer, reference = World(1, 3), make_buffer(60, 3), Reference(10, 3)
    roam(buffer, reference, world, 15)
    buffer.save(tmp_path / "b")
    loaded = ReplayBuffer.load(tmp_path / "b", capacity=30)
    assert_holds(loaded, reference, 5)
    for env in range(3):
        reference.end_trajectory(env)
    world.restart()
    for _ in range(12):
        add_step(loaded, reference, world.step()[0])
        assert_holds(loaded, reference, 3)


@pytest.mark.parametrize("seed", range(12))
def test_any_layout_holds_what_brute_force_says(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    monkeypatch.setattr("rltrainer.data.transition_sources.CHUNK_SIZE", int(rng.choice([1, 5, 1000])))
    num_envs, capacity = int(rng.integers(1, 5)), int(rng.integers(5, 40))
    world, buffer = World(seed, num_envs, 0.5), make_buffer(capacity * num_envs, num_envs)
    for _ in range(int(rng.integers(0, 12))):
        buffer.add_rollout(make_rollout([world.step() for _ in range(5)]))
    buffer.save(tmp_path / "b")
    other_envs = int(rng.integers(1, 6))
    other_capacity = int(rng.integers(other_envs, 90))
    loaded = ReplayBuffer.load(tmp_path / "b", capacity=other_capacity, num_envs=other_envs)
    assert loaded.capacity == -(-other_capacity // other_envs) * other_envs  # rounded up
    assert len(loaded) == min(len(buffer), loaded.capacity)
    if not len(buffer):
        return
    mine, its = (found(each.sample(6000, gamma=0.5)) for each in (buffer, loaded))
    assert its.items() <= mine.items()
    assert len(its) == len(loaded)
    # Windows of several steps never join what was apart: their reward is the sum along the true successors.
    by_obs = found(buffer.sample(6000, gamma=1.0))
    for obs, (_, reward, after, *_) in found(loaded.sample(6000, n_step=3, gamma=1.0)).items():
        total, here = 0.0, obs
        for _ in range(3):
            total, here = total + by_obs[here][1], int(by_obs[here][2])
            if here == after:
                break
        assert (here, total) == (after, reward)
    # And what is added later continues nothing.
    world.p_invalid = 0.0
    reference = World(seed + 50, other_envs)
    reference.number = 100_000
    reference.restart()
    cells = reference.step()[0]
    add_step(loaded, None, cells)
    joined = found(loaded.sample(6000, n_step=4, gamma=1.0))
    assert all(values[2] < 100_000 for obs, values in joined.items() if obs < 100_000)


def test_extending_keeps_what_fits(caplog: pytest.LogCaptureFixture) -> None:
    buffer, other = make_buffer(40, 4), make_buffer(30)
    for i in range(3):
        add_step(buffer, None, [cell(1000 * env + i) for env in range(1, 5)])
    fill(other, *(cell(10 * i, after=10 * i + 10) for i in range(30)))
    buffer.extend(other)
    # All 30 and the newest 10 of 12: two envs gave way by one cell.
    held = sorted(found(buffer.sample(3000)))
    assert held[:30] == [10 * i for i in range(30)]
    assert len(held) == 40
    assert {1001, 1002, 2001, 2002, 3001, 3002, 4001, 4002} <= set(held)
    assert not caplog.records
    small = make_buffer(20, 4)
    small.extend(other)
    assert sorted(found(small.sample(3000))) == [10 * i for i in range(10, 30)]
    assert caplog.messages == [
        "ReplayBuffer.extend: 10 of 30 transitions do not fit into a capacity of 20 and are left out; "
        "the newest are kept"
    ]


def test_the_newest_of_all_envs() -> None:
    sizes = np.array([8, 2, 0])
    kept = {count: newest(sizes, count).tolist() for count in (100, 10, 7, 6, 3, 0)}
    assert kept == {100: [8, 2, 0], 10: [8, 2, 0], 7: [5, 2, 0], 6: [4, 2, 0], 3: [2, 1, 0], 0: [0, 0, 0]}
