"""Stacked frames that are stored one by one: the same stacks as those that are stored whole, in little memory."""

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError, ReplayBufferError, SpaceError
from tests.unit.data.reference import ACTION, raises

STACKS = gym.spaces.Box(0, 255, (3, 2), np.uint8)


def make(capacity: int = 20, num_envs: int = 1, **options: Any) -> rl.ReplayBuffer:
    return rl.ReplayBuffer(capacity, STACKS, ACTION, num_envs, **{"seed": 0, "frame_stack": 3, **options})


def stack(*frames: int) -> np.ndarray[Any, Any]:
    """Return a stack [1, 3, 2] of frames of two equal pixels each."""
    return np.repeat(np.array(frames, np.uint8)[None, :, None], 2, axis=2)


def add(buffer: rl.ReplayBuffer, obs: Any, next_obs: Any, truncated: bool = False) -> None:
    buffer.add(obs, [0], [0.0], next_obs, [False], [truncated])


def found(batch: rl.Transitions) -> dict[int, tuple[list[int], list[int]]]:
    """Return obs and next_obs by the newest frame of obs."""
    assert torch.equal(batch.obs[..., 0], batch.obs[..., 1])
    rows = zip(batch.obs[:, :, 0].tolist(), batch.next_obs[:, :, 0].tolist(), strict=True)
    return {obs[-1]: (obs, next_obs) for obs, next_obs in rows}


def test_stacks_worked_by_hand() -> None:
    # An episode of the frames 5 6 7 8, cut short after 8, and the beginning of another one.
    buffer = make()
    expected = {
        5: ([5, 5, 5], [5, 5, 6]),
        6: ([5, 5, 6], [5, 6, 7]),
        7: ([5, 6, 7], [6, 7, 8]),
        20: ([20, 20, 20], [20, 20, 21]),
    }
    for newest, (frames, after) in expected.items():
        add(buffer, stack(*frames), stack(*after), truncated=newest == 7)
    assert found(buffer.sample(200)) == expected
    assert found(buffer.sample(200, n_step=2))[5] == ([5, 5, 5], [5, 6, 7])
    assert found(buffer.sample(200, n_step=3))[6] == ([5, 5, 6], [6, 7, 8])


def test_stacks_whose_first_frames_are_forgotten_are_not_drawn() -> None:
    buffer = make(4)
    frames = [5, 5, 5, 6, 7, 8, 9, 10]
    for i in range(4):
        add(buffer, stack(*frames[i : i + 3]), stack(*frames[i + 1 : i + 4]))
    assert sorted(found(buffer.sample(200))) == [5, 6, 7, 8]  # nothing is forgotten
    add(buffer, stack(7, 8, 9), stack(8, 9, 10))
    assert len(buffer) == 4  # of 6 and 7, frames 4 and 5 are gone
    assert found(buffer.sample(200)) == {8: ([6, 7, 8], [7, 8, 9]), 9: ([7, 8, 9], [8, 9, 10])}
    assert found(buffer.sample(200, n_step=2))[8] == ([6, 7, 8], [8, 9, 10])


class Frames(gym.Env[Any, Any]):
    """Observes one pixel that counts up from a random number; an episode has three to nine steps."""

    observation_space = gym.spaces.Box(0, 255, (1,), np.uint8)
    action_space = gym.spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.pixel, self.left = self.np_random.integers([100, 3], [200, 10]).tolist()
        return np.array([self.pixel], np.uint8), {}

    def step(self, action: Any) -> Any:
        self.pixel, self.left = self.pixel + 1, self.left - 1
        ends = self.left == 0
        return np.array([self.pixel], np.uint8), 1.0, ends and action == 0, ends and action != 0, {}


def collected(collections: list[int], capacity: int, mode: str, **options: Any) -> rl.ReplayBuffer:
    """Return a buffer of stacks that envs of gymnasium made."""

    def stacked() -> Any:
        return gym.wrappers.FrameStackObservation(Frames(), 4)

    if mode == "sync":
        envs = rl.make_vec(stacked, 2, backend="sync", seed=1)
    else:
        envs = gym.vector.SyncVectorEnv([stacked] * 2, autoreset_mode=gym.vector.AutoresetMode[mode])
    space = envs.single_observation_space
    buffer = rl.ReplayBuffer(capacity, space, envs.single_action_space, 2, seed=0, **options)
    collector = rl.Collector(rl.QNetwork.for_envs(envs, hidden_sizes=(8,)), envs, buffer)
    collector.seed(3)
    for num_steps in collections:
        collector.collect(num_steps=num_steps, random=True)
    return buffer


def assert_equal(one: rl.Transitions, other: rl.Transitions) -> None:
    for name in ("obs", "next_obs", "reward", "discount", "index", "terminated", "truncated"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("mode", ["sync", "NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("collections", [[2] * 40, [30, 2, 2, 46]])
def test_sampled_stacks_are_those_of_the_env(collections: list[int], mode: str) -> None:
    # With room for all, nothing is forgotten, and no trace is cut within an episode.
    whole, frames = (collected(collections, 100, mode, frame_stack=stack) for stack in (None, 4))
    for n_step in (1, 3):
        assert_equal(whole.sample(200, n_step=n_step), frames.sample(200, n_step=n_step))
    assert_equal(whole.sample_sequences(50, 3, 2), frames.sample_sequences(50, 3, 2))
    assert_equal(whole.sample(5, num_batches=2), frames.sample(5, num_batches=2))
    for one, other in zip(whole.observations(), frames.observations(), strict=True):
        assert torch.equal(one, other)


def assert_stacks_of_the_env(batch: Any, whole: rl.ReplayBuffer, n_step: int = 1) -> None:
    """Compare what was sampled from frames with the same cells of a buffer of stacks."""
    expected = whole._ring.transitions(batch.index.flatten(), n_step, 0.99).reshape(*batch.index.shape)
    assert torch.equal(batch.obs, expected.obs)
    assert torch.equal(batch.next_obs, expected.next_obs)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("collections", [[2] * 40, [30, 2, 2, 46]])
def test_a_wrapped_buffer_draws_no_stack_that_the_env_did_not_make(collections: list[int], n_step: int) -> None:
    whole, frames = (collected(collections, 30, "sync", frame_stack=stack) for stack in (None, 4))
    batch = frames.sample(500, n_step=n_step)
    assert_stacks_of_the_env(batch, whole, n_step)
    assert len(batch.index.unique()) == len(frames) - 2 * 3  # all others are drawn
    sequences = frames.sample_sequences(300, 4, 3, n_step=n_step)
    assert_stacks_of_the_env(sequences, whole, n_step)
    oldest = torch.isin(sequences.index, frames._ring._lookup()[4])
    assert sequences.first[oldest].all()


def uneven(buffer: Any, count: Any, order: tuple[int, ...] = (2, 1, 0)) -> None:
    """Store so many transitions of each env, in one rollout whose cells are valid where the env has some."""
    num_rows, num_envs = max(count), len(count)
    frame = torch.arange(1, num_rows + 2, dtype=torch.uint8)[:, None, None, None].expand(-1, num_envs, 3, 2)
    stacks = torch.stack([frame[(torch.arange(num_rows + 1) - back).clamp_(min=0), :, 0] for back in order], 2)
    valid, none = torch.arange(num_rows)[:, None] < torch.tensor(count), torch.zeros(num_rows, num_envs).bool()
    last = stacks[torch.tensor(count), torch.arange(num_envs)]
    ends = torch.tensor([(n - 1) * num_envs + env for env, n in enumerate(count) if 0 < n < num_rows]).long()
    buffer.add_rollout(rl.Rollout(
        obs=stacks[:-1], action=torch.zeros(num_rows, num_envs, dtype=torch.int64),
        reward=torch.zeros(num_rows, num_envs), terminated=none, truncated=none, valid=valid, last_obs=last,
        final_obs=last[ends % num_envs], final_index=ends, starts=torch.ones(num_envs, dtype=torch.bool),
    ))  # fmt: skip


@pytest.mark.parametrize("kind", [rl.ReplayBuffer, rl.PrioritizedReplayBuffer])
def test_envs_that_hold_unequally_many(kind: Any) -> None:
    """Each env keeps 6 transitions; the first has forgotten 3, the second nothing, the third 1."""
    buffer = kind(18, STACKS, ACTION, 3, seed=0, frame_stack=3)
    uneven(buffer, [9, 6, 7])
    batch = buffer.sample(12_000)
    expected = [(0, 6), (0, 7), (0, 8), (0, 9), *[(1, n) for n in range(1, 7)], (2, 4), (2, 5), (2, 6), (2, 7)]
    drawn = torch.stack([batch.index % 3, batch.obs[:, -1, 0].long()], 1)
    cells, counts = drawn.unique(dim=0, return_counts=True)
    assert [tuple(cell) for cell in cells.tolist()] == expected
    assert (counts - 12_000 / 14).abs().max() < 150  # five standard deviations
    assert torch.equal(batch.obs[:, -1], batch.obs[:, -2] + (batch.obs[:, -1] > 1))  # frames count up from 1


def test_priorities_of_stacks_go_into_checkpoints_and_files(tmp_path: Path) -> None:
    def prioritized() -> Any:
        return rl.PrioritizedReplayBuffer(6, STACKS, ACTION, seed=0, frame_stack=3, beta=1.0)

    buffer, other = prioritized(), prioritized()
    uneven(buffer, [9])
    batch = buffer.sample(60)
    buffer.update_priorities(batch.index, batch.obs[:, -1, 0].float())
    other.load_state_dict(buffer.state_dict())
    assert_equal(buffer.sample(50), other.sample(50))
    weight = buffer.sample(400).weight
    assert weight.unique().numel() == 4
    path = tmp_path / "buffer.safetensors"
    buffer.save(path)
    for capacity in (6, 5, 12):
        loaded = rl.PrioritizedReplayBuffer.load(path, capacity=capacity)
        rl.PrioritizedReplayBuffer(capacity, STACKS, ACTION, frame_stack=3).load_state_dict(loaded.state_dict())
        assert 9 in loaded.sample(200).obs[:, -1, 0].tolist()


def test_files_checkpoints_copies_and_other_sizes(tmp_path: Path) -> None:
    buffer, path = collected([2] * 30, 100, "sync", frame_stack=4), tmp_path / "buffer.safetensors"
    buffer.save(path)
    twin, loaded = copy.deepcopy(buffer), rl.ReplayBuffer.load(path)
    restored = rl.ReplayBuffer(100, buffer.observation_space, ACTION, 2, frame_stack=4)
    restored.load_state_dict(buffer.state_dict())
    batch = buffer.sample(50)
    for other in (twin, loaded, restored):
        assert_equal(batch, other.sample(50))
    single = rl.ReplayBuffer.load(path, num_envs=1, capacity=200)
    stacks = [{tuple(x) for x in each.sample(600).obs[..., 0].tolist()} for each in (single, buffer)]
    assert stacks[0] == stacks[1]
    prioritized = rl.PrioritizedReplayBuffer.load(path)
    assert prioritized.sample(3).obs.shape == (3, 4, 1)


def test_a_frame_is_stored_once() -> None:
    # 7,056 bytes each; action, reward and flags take 18 more, the final observations' places and store little.
    atari = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert rl.ReplayBuffer(100_000, atari, ACTION, frame_stack=4).nbytes < 0.72e9


def test_buffers_of_frames_and_of_stacks_do_not_mix(tmp_path: Path) -> None:
    frames, whole = make(), make(frame_stack=None)
    with pytest.raises(SpaceError, match="ReplayBuffer.extend: frame_stack: expected 3, found None"):
        frames.extend(whole)
    with pytest.raises(ReplayBufferError, match="frame_stack: expected None, found 3"):
        whole.load_state_dict(frames.state_dict())
    for damaged in (4, 0, "3", True):
        with pytest.raises(ReplayBufferError, match="frame_stack: (must be the number of frames of Box|expected a)"):
            frames.load_state_dict(frames.state_dict() | {"frame_stack": damaged})


def test_what_is_no_stack_is_refused() -> None:
    buffer, good = make(), stack(1, 1, 1)
    short, few = np.zeros((1, 2), np.uint8), np.zeros((1, 2, 2), np.uint8)
    for obs, next_obs, shape in ((short, good, "(1, 2)"), (good, few, "(1, 2, 2)"), (3, 4, "()")):
        with raises(ReplayBufferError, f"ReplayBuffer.obs: expected stacks of shape (3, 2), got {shape}"):
            add(buffer, obs, next_obs)
    assert len(buffer) == 0


@pytest.mark.parametrize("is_rollout", [False, True])
def test_numbers_that_are_no_frames_are_refused(is_rollout: bool) -> None:
    """Here the oldest frame is the last one."""
    buffer = make()
    text = "ReplayBuffer.frame_stack: must be the number of frames in an observation, and the next one must repeat"
    with raises(ParamsError, text):
        if is_rollout:
            uneven(buffer, [5], order=(0, 1, 2))
        else:
            add(buffer, stack(3, 2, 1), stack(4, 3, 2))
    assert len(buffer) == 0
