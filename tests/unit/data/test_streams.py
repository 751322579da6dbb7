"""Whose steps a buffer holds: what another stream stores continues nothing, and copies have memory of their own."""

import copy
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.data import ReplayBuffer, RolloutBuffer
from tests.fakes import OBS_SPACE, CountingEnv, tiny_actor_critic
from tests.unit.data.reference import (
    ACTION,
    OBS,
    Reference,
    World,
    as_obs,
    assert_holds,
    cell,
    fill,
    found,
    make_buffer,
    make_rollout,
    roam,
)  # fmt: skip


def successors(buffer: ReplayBuffer, n_step: int = 1) -> dict[int, int]:
    return {obs: int(values[2]) for obs, values in found(buffer.sample(600, n_step=n_step)).items()}


def add(buffer: ReplayBuffer, obs: int, stream: object = None) -> None:
    no = np.zeros(1, np.bool_)
    buffer.add(as_obs([obs]), np.zeros(1, int), np.ones(1), as_obs([obs + 1]), no, no, token=stream)


def test_two_streams_take_turns() -> None:
    buffer, one, other = make_buffer(20), object(), object()
    for obs, stream in ((0, one), (1, one), (100, other), (2, one), (3, one), (200, None), (201, None), (4, one)):
        add(buffer, obs, stream)
    assert successors(buffer) == {0: 1, 1: 2, 100: 101, 2: 3, 3: 4, 200: 201, 201: 202, 4: 5}
    assert successors(buffer, 3) == {0: 2, 1: 2, 100: 101, 2: 4, 3: 4, 200: 202, 201: 202, 4: 5}


def test_an_observation_that_a_row_holds_is_not_written_again() -> None:
    """Only a stream promises that its steps continue."""
    buffer, stream = make_buffer(20), object()
    for obs, token in ((0, stream), (7, stream), (8, None), (20, None)):
        add(buffer, obs, token)
    assert successors(buffer) == {0: 1, 1: 8, 8: 20, 20: 21}


@pytest.mark.parametrize("valid", [True, False])
def test_a_rollout_that_starts_anew_ends_the_trace_of_that_env(valid: bool) -> None:
    # Both envs begin where the rollout before ended, as the same first observation may: only env 0 says it starts anew.
    buffer = make_buffer(20, 2)
    first = make_rollout([([cell(0), cell(100)], [True, True])])
    rows = [([cell(i), cell(100 + i)], [valid or i > 1, True]) for i in (1, 2)]
    second = make_rollout(rows)
    second.starts = torch.tensor([True, False])
    buffer.add_rollout(first)
    buffer.add_rollout(second)
    assert successors(buffer, 3) == {0: 1, 2: 3, 100: 103, 101: 103, 102: 103} | ({1: 3} if valid else {})


def test_rollouts_of_which_one_was_left_out_do_not_join() -> None:
    buffer = make_buffer(20)
    for first in (0, 2, 10):  # the second goes on where the first one ended, the third does not
        buffer.add_rollout(make_rollout([([cell(first + i)], [True]) for i in range(2)]))
    assert successors(buffer, 9) == {0: 4, 1: 4, 2: 4, 3: 4, 10: 12, 11: 12}


def test_a_rollout_buffer_says_that_another_stream_starts() -> None:
    buffer = RolloutBuffer(4, 2, OBS, ACTION)
    for stream, starts in (("a", True), ("a", False), ("b", True), ("a", True), ("a", False)):
        buffer.begin(stream)
        no, row = np.zeros(2, np.bool_), np.zeros(2)
        buffer.add(as_obs([0, 1]), row.astype(int), row, as_obs([1, 2]), no, no)
        assert buffer.rollout().starts.tolist() == [starts, starts]


def test_a_loaded_state_goes_on_by_hand_but_not_by_a_stream() -> None:
    stream = object()
    buffer = make_buffer(9)
    add(buffer, 0, stream)
    state = copy.deepcopy(buffer.state_dict())
    for later, expected in ((None, {0: 2, 1: 2}), (stream, {0: 1, 1: 2})):
        buffer.load_state_dict(state)
        add(buffer, 1, later)
        assert successors(buffer, 2) == expected


class Numbered(CountingEnv):
    """Observes (episode's number, step): no two episodes of a test share an observation."""

    number = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        Numbered.number += 1
        self.number = Numbered.number
        return self._obs(), {}


def numbered_envs(num_envs: int, rng: np.random.Generator, mode: str) -> Any:
    Numbered.number = 0
    makers = [lambda n=n: Numbered(length=n, truncates=n % 2 == 0) for n in rng.integers(1, 7, num_envs).tolist()]
    if mode == "sync":
        todo = iter(makers)
        return rl.make_vec(lambda: next(todo)(), num_envs, backend="sync")
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode[mode])


def assert_true_successors(buffer: ReplayBuffer) -> None:
    """Assert that each transition leads to the next step of its own episode, and a window no further than its end."""
    for n_step in (1, 4):
        batch = buffer.sample(600, n_step=n_step, gamma=1.0)
        assert torch.equal(batch.obs[:, 0], batch.next_obs[:, 0])
        steps = batch.next_obs[:, 1] - batch.obs[:, 1]
        assert torch.equal(batch.reward, steps)
        assert ((steps >= 1) & (steps <= n_step)).all()


@pytest.mark.parametrize("mode", ["sync", "NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("seed", range(4))
def test_collectors_that_take_turns_on_one_buffer(seed: int, mode: str) -> None:
    rng = np.random.default_rng(seed)
    num_envs = int(rng.integers(1, 4))
    buffer = ReplayBuffer(60 * num_envs, OBS_SPACE, gym.spaces.Discrete(2), num_envs, seed=0)
    envs = [numbered_envs(num_envs, rng, mode) for _ in range(2)]
    Numbered.number = 0
    policy = tiny_actor_critic(envs[0])
    # The third collector has the envs of the first one.
    collectors = [rl.Collector(policy, one, buffer) for one in (*envs, envs[0])]
    # These envs are not deterministic: they start a new episode where they were resumed.
    warnings.filterwarnings("ignore", message="envs .*they start a new episode instead")
    for _ in range(25):
        one = collectors[rng.integers(3)]
        what = rng.integers(8)
        if what == 0:
            one.reset()
        elif what == 1:
            one.attach_buffer(buffer)
        elif what == 2:
            one.collect(num_episodes=int(rng.integers(1, 4)))
        elif what == 4:
            collectors = copy.deepcopy(collectors)
            buffer, one = collectors[0].buffer, collectors[rng.integers(3)]
        elif what == 5:
            one = rl.Collector(policy, collectors[0].envs, buffer)
        elif what == 3:
            one.load_state_dict(one.state_dict())
        one.collect(num_steps=int(rng.choice([1, 1, 2, 7])) * num_envs)
        assert_true_successors(buffer)


def test_a_restore_that_is_refused_after_the_envs_were_reset_joins_nothing() -> None:
    rng = np.random.default_rng(0)
    envs = numbered_envs(2, rng, "sync")
    buffer = ReplayBuffer(100, OBS_SPACE, gym.spaces.Discrete(2), 2, seed=0)
    one = rl.Collector(tiny_actor_critic(envs), envs, buffer)
    one.collect(num_steps=6)
    state = one.state_dict()
    one.load_state_dict(state)  # what a trainer does before it finds that another part does not fit
    with pytest.warns(UserWarning, match="did not come back to where they were"):
        one.collect(num_steps=6)
    assert_true_successors(buffer)


@pytest.mark.parametrize("num_steps", [1, 3])
def test_collecting_with_another_buffer_between_leaves_a_gap(num_steps: int) -> None:
    envs = numbered_envs(1, np.random.default_rng(3), "sync")
    envs.envs[0].length = 50
    buffers = [ReplayBuffer(100, OBS_SPACE, gym.spaces.Discrete(2), seed=0) for _ in range(2)]
    one = rl.Collector(tiny_actor_critic(envs), envs, buffers[0])
    for i in (0, 1, 0):
        one.attach_buffer(buffers[i])
        one.collect(num_steps=num_steps)
    sample = buffers[0].sample(200, n_step=6, gamma=1.0)
    assert sample.reward.max() == num_steps


COPIES: list[Callable[[Any], Any]] = [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]


@pytest.mark.parametrize("copied", COPIES)
def test_a_copied_replay_buffer_goes_on_by_itself(copied: Callable[[Any], Any]) -> None:
    world, buffer, reference = World(3, 3), make_buffer(21, 3), Reference(7, 3)
    roam(buffer, reference, world, 10)
    twin, its_world, its_reference = copied(buffer), copy.deepcopy(world), copy.deepcopy(reference)
    assert torch.equal(twin.sample(9).index, buffer.sample(9).index)
    for k in range(11):
        roam(twin, its_reference, its_world, 1)
        assert_holds(twin, its_reference, 3)
        cells = [cell(5000 + 3 * k + env, 0.0, 1, "t") for env in range(3)]
        twin.add_rollout(make_rollout([(cells, [True] * 3)]))
        for env in range(3):
            its_reference.end_trajectory(env)  # the rollout begins elsewhere
            its_reference.add(env, cells[env])
        assert_holds(twin, its_reference, 3)
    assert_holds(buffer, reference, 3)  # of which nothing was overwritten


def test_both_halves_of_a_copy_share_memory() -> None:
    buffers = [make_buffer(8), RolloutBuffer(4, 1, OBS, ACTION)]
    fill(buffers[0], cell(0, end="t"))
    buffers[1].add(as_obs([0]), np.array([1]), np.ones(1), as_obs([1]), np.array([True]), np.array([False]))
    buffers[1].rollout(), buffers[1].single_row()
    for buffer in copy.deepcopy(buffers):
        is_replay = isinstance(buffer, ReplayBuffer)
        columns = buffer._ring.columns if is_replay else buffer._columns
        stores = [*columns.values(), buffer._ring.final._store if is_replay else buffer._final_obs]
        for leaf in (leaf for store in stores for leaf in store.leaves):
            assert np.shares_memory(leaf.target, leaf.tensor.numpy())
            assert np.shares_memory(leaf.target, leaf.flat.numpy())
        writer = buffer._ring._rows if is_replay else buffer._writer
        assert {id(leaf) for leaf, _ in writer._leaves} <= {id(leaf) for store in stores for leaf in store.leaves}
    rollouts = copy.deepcopy(buffers[1])
    rollouts.add(as_obs([7]), np.array([2]), np.full(1, 3.0), as_obs([8]), np.array([False]), np.array([False]))
    assert rollouts.rollout().reward.tolist() == [[1.0], [3.0]]
    assert buffers[1].rollout().reward.tolist() == [[1.0]]
    one_row = copy.deepcopy(buffers[1])
    one_row.clear()
    one_row.add(as_obs([7]), np.array([2]), np.full(1, 3.0), as_obs([8]), np.array([False]), np.array([False]))
    assert one_row.single_row()[2].tolist() == one_row.rollout().reward[0].tolist() == [3.0]


@pytest.mark.parametrize("copied", COPIES)
def test_a_copied_collector_goes_on_as_the_original(copied: Callable[[Any], Any]) -> None:
    envs = rl.make_vec("CartPole-v1", 3, backend="native", seed=4)
    buffer = ReplayBuffer(600, envs.single_observation_space, envs.single_action_space, 3, seed=0)
    one = rl.Collector(tiny_actor_critic(envs), envs, buffer)
    one.seed(3)
    one.collect(num_steps=60)
    twin = copied(one)
    for each in (one, twin):
        each.collect(num_steps=90)
    mine, its = one.buffer.state_dict(), twin.buffer.state_dict()
    assert len(mine["rows"]) == len(its["rows"]) > 0
    for rows, other in zip(mine["rows"], its["rows"], strict=True):
        assert all(torch.equal(rows["data"][name], other["data"][name]) for name in rows["data"])
        assert torch.equal(rows["final_index"], other["final_index"])
    assert twin.envs is not one.envs
    assert twin.adapter.obs_tensor.data_ptr() == twin.adapter.obs.__array_interface__["data"][0]


def test_envs_that_cannot_be_copied() -> None:
    envs = numbered_envs(1, np.random.default_rng(0), "sync")
    envs.connection = threading.Lock()  # as sockets and processes, no copy can be made of it
    one = rl.Collector(tiny_actor_critic(envs), envs)
    with pytest.raises(rl.errors.EnvError, match=r"cannot be copied \(TypeError.*Make a collector with"):
        copy.deepcopy(one)
