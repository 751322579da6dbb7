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
from tests.unit.data.reference import ACTION

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
    add(buffer, stack(5, 5, 5), stack(5, 5, 6))
    add(buffer, stack(5, 5, 6), stack(5, 6, 7))
    add(buffer, stack(5, 6, 7), stack(6, 7, 8), truncated=True)
    add(buffer, stack(20, 20, 20), stack(20, 20, 21))
    assert found(buffer.sample(200)) == {
        5: ([5, 5, 5], [5, 5, 6]),
        6: ([5, 5, 6], [5, 6, 7]),
        7: ([5, 6, 7], [6, 7, 8]),
        20: ([20, 20, 20], [20, 20, 21]),
    }
    assert found(buffer.sample(200, n_step=2))[5] == ([5, 5, 5], [5, 6, 7])
    assert found(buffer.sample(200, n_step=3))[6] == ([5, 5, 6], [6, 7, 8])


def test_the_oldest_row_is_repeated_where_those_before_it_are_forgotten() -> None:
    buffer = make(3)
    frames = [5, 5, 5, 6, 7, 8, 9, 10]
    for i in range(5):
        add(buffer, stack(*frames[i : i + 3]), stack(*frames[i + 1 : i + 4]))
    assert found(buffer.sample(200)) == {
        7: ([7, 7, 7], [7, 7, 8]),
        8: ([7, 7, 8], [7, 8, 9]),
        9: ([7, 8, 9], [8, 9, 10]),
    }


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


def test_a_wrapped_buffer_differs_at_its_oldest_rows_alone() -> None:
    whole, frames = (collected([2] * 40, 30, "sync", frame_stack=stack) for stack in (None, 4))
    one, other = whole.sample(500), frames.sample(500)
    differs = (one.obs != other.obs).flatten(1).any(1) | (one.next_obs != other.next_obs).flatten(1).any(1)
    oldest = whole._ring._lookup()[3]
    rows_since = (one.index // 2 - oldest[one.index % 2] // 2) % whole._ring.num_rows
    assert int(differs.sum()) > 0
    assert int(rows_since[differs].max()) < 3


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
    assert {tuple(x) for x in single.sample(600).obs[..., 0].tolist()} == {
        tuple(x) for x in buffer.sample(600).obs[..., 0].tolist()
    }
    prioritized = rl.PrioritizedReplayBuffer.load(path)
    assert prioritized.sample(3).obs.shape == (3, 4, 1)


def test_a_frame_is_stored_once() -> None:
    # 7,056 bytes each; action, reward and flags take 18 more, the final observations' places and store little.
    atari = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert rl.ReplayBuffer(100_000, atari, ACTION, frame_stack=4).nbytes < 0.72e9


def test_stacks_take_part_in_a_run() -> None:
    envs = rl.make_vec(lambda: gym.wrappers.FrameStackObservation(Frames(), 4), 2, backend="sync")
    agent = rl.DQN(rl.QNetwork.for_envs(envs, hidden_sizes=(8,)))
    spaces = (envs.single_observation_space, envs.single_action_space)
    buffer = rl.PrioritizedReplayBuffer(50, *spaces, 2, frame_stack=4)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(agent.policy, envs, buffer), max_epochs=1, epoch_num_steps=40, batch_size=8,
        collection_step_num_env_steps=4, show_progress=False, verbose=False, seed=1,
    )  # fmt: skip
    assert rl.OffPolicyTrainer(agent, params).run().gradient_step == 40


def test_buffers_of_frames_and_of_stacks_do_not_mix(tmp_path: Path) -> None:
    frames, whole = make(), make(frame_stack=None)
    with pytest.raises(SpaceError, match="ReplayBuffer.extend: frame_stack: expected 3, found None"):
        frames.extend(whole)
    with pytest.raises(ReplayBufferError, match="frame_stack: expected None, found 3"):
        whole.load_state_dict(frames.state_dict())
    for damaged in (4, 0, "3", True):
        with pytest.raises(ReplayBufferError, match="frame_stack: must be how many frames Box"):
            frames.load_state_dict(frames.state_dict() | {"frame_stack": damaged})


@pytest.mark.parametrize(
    ("space", "frame_stack", "error", "text"),
    [
        (STACKS, 0, ParamsError, "ReplayBuffer.frame_stack: must be a positive integer; got 0 (int)"),
        (STACKS, 2, SpaceError, "ReplayBuffer.observation_space: must be a Box with 2 frames along its first axis"),
        (ACTION, 2, SpaceError, "must be a Box with 2 frames along its first axis; got Discrete(5) (Discrete)"),
        (gym.spaces.Dict(a=STACKS), 3, SpaceError, "must be a Box with 3 frames along its first axis; got Dict"),
    ],
)
def test_bad_stacks(space: Any, frame_stack: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        rl.ReplayBuffer(10, space, ACTION, frame_stack=frame_stack)
    assert text in str(raised.value)


def test_what_is_no_stack_is_refused() -> None:
    buffer = make()
    with pytest.raises(ReplayBufferError, match=r"ReplayBuffer.obs: expected stacks of shape \(3, 2\), got \(1, 2\)"):
        add(buffer, np.zeros((1, 2), np.uint8), stack(1, 1, 1))
    with pytest.raises(ReplayBufferError, match=r"got \(1, 2, 2\)"):
        add(buffer, stack(1, 1, 1), np.zeros((1, 2, 2), np.uint8))
    with pytest.raises(ReplayBufferError, match="expected stacks of shape"):
        add(buffer, 3, 4)
    assert len(buffer) == 0
