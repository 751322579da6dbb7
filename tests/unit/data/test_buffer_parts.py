"""The part of a buffer that a shard of a run takes."""

import copy
import weakref
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.data import ReplayBuffer, RolloutBuffer, replay_buffer
from rltrainer.data.prioritized import PrioritySampler
from rltrainer.errors import ParamsError, ReplayBufferError

OBS, ACTION = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
GOAL = gym.spaces.Box(-1, 1, (2,))
GOALS = gym.spaces.Dict({"observation": OBS, "achieved_goal": GOAL, "desired_goal": GOAL})


def reward_of(achieved: Any, desired: Any, info: Any) -> Any:
    return np.zeros(len(achieved), np.float32)


def offline(seed: int | None = None) -> ReplayBuffer:
    buffer = ReplayBuffer(8, OBS, ACTION, seed=seed)
    for _ in range(5):
        fill(buffer)
    return buffer


class Doubled(rl.PrioritizedReplayBuffer):
    """A user's buffer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.doubles = True


MAKERS: dict[str, Any] = {
    "uniform": lambda **options: ReplayBuffer(102, OBS, ACTION, 4, **options),
    "prioritized": lambda **options: rl.PrioritizedReplayBuffer(102, OBS, ACTION, 4, alpha=0.7, **options),
    "hindsight": lambda **options: rl.HindsightReplayBuffer(102, GOALS, ACTION, 4, compute_reward=reward_of, **options),
    "mixed": lambda **options: rl.MixedBuffer(ReplayBuffer(102, OBS, ACTION, 4, **options), offline()),
    "user's": lambda **options: Doubled(102, OBS, ACTION, 4, **options),
}


def fill(buffer: Any, count: int = 1) -> None:
    """Store some steps of all envs."""
    n, rng = buffer.num_envs, np.random.default_rng(0)
    has_goals = isinstance(buffer.observation_space, gym.spaces.Dict)
    for number in range(count):
        obs = {"observation": rng.random((n, 3), np.float32)}
        obs |= {name: rng.random((n, 2), np.float32) for name in ("achieved_goal", "desired_goal")}
        given: Any = obs if has_goals else obs["observation"]
        ends = np.full(n, number % 5 == 4)
        buffer.add(given, np.zeros(n, np.int64), np.zeros(n, np.float32), given, ends, np.zeros(n, np.bool_))


def num_online(buffer: ReplayBuffer) -> int:
    return len(getattr(buffer, "online", buffer))


@pytest.mark.parametrize("kind", MAKERS)
def test_a_part_has_its_share_of_envs_and_capacity(kind: str) -> None:
    buffer = MAKERS[kind]()
    buffer.take_part(1, num_envs=2)
    assert (buffer.capacity, buffer.num_envs) == (52, 2)
    like = type(buffer) is ReplayBuffer and ReplayBuffer(52, OBS, ACTION, 2)
    assert not like or (like.nbytes, like.num_slots) == (buffer.nbytes, buffer.num_slots)
    fill(buffer, 40)
    assert num_online(buffer) == 52
    batch = buffer.sample(16)
    buffer.update_priorities(batch.index, torch.ones(16))
    again = MAKERS[kind]()
    again.take_part(0, num_envs=2)
    again.load_state_dict(buffer.state_dict())
    assert num_online(again) == 52


def test_a_part_of_a_prioritized_buffer_has_priorities_of_its_size() -> None:
    buffer = rl.PrioritizedReplayBuffer(100, OBS, ACTION, 4, alpha=0.7, beta=0.3)
    buffer.take_part(0, num_envs=1)
    sampler = buffer.sampler
    assert isinstance(sampler, PrioritySampler)
    assert (sampler.tree.size, sampler.alpha, sampler.beta) == (buffer.num_slots, 0.7, 0.3)


def test_a_mixed_buffer_keeps_its_offline_data_whole() -> None:
    data = offline(seed=3)
    buffers = [rl.MixedBuffer(ReplayBuffer(100, OBS, ACTION, 4), copy.deepcopy(data)) for _ in range(2)]
    for rank, buffer in enumerate(buffers):
        buffer.take_part(rank, num_envs=2)
        assert len(buffer.offline) == 5
        assert buffer.online.num_envs == buffer.num_envs == 2
        fill(buffer, 3)
        assert (len(buffer.online), len(buffer)) == (6, 11)
        buffer.seed(1)
    drawn = [buffer.offline.sample(32).index.tolist() for buffer in buffers]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("kind", MAKERS)
def test_ranks_draw_other_numbers_from_a_seed_of_the_buffer(kind: str) -> None:
    states = []
    for rank in range(3):
        buffer = MAKERS[kind](seed=7)
        buffer.take_part(rank % 2, num_envs=2)
        buffer.seed(1)  # the buffer's own wins
        states.append(buffer.generator.get_state().tolist())
    assert states[0] == states[2] != states[1]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_copy_of_a_part_takes_another_one(kind: str) -> None:
    """Its numbers are those of a buffer that was never another part."""
    buffer, plain = MAKERS[kind](seed=7), MAKERS[kind](seed=7)
    buffer.take_part(0, num_envs=1)
    copied = copy.deepcopy(buffer)
    for each in (copied, plain):
        each.take_part(1, num_envs=1)
        fill(each, 2)
    assert (num_online(copied), num_online(buffer)) == (2, 0)
    assert torch.equal(copied.generator.get_state(), plain.generator.get_state())


@pytest.mark.parametrize("kind", MAKERS)
def test_a_buffer_frees_its_memory_before_it_takes_a_part(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, make = MAKERS[kind](), replay_buffer.Ring
    old, kept = weakref.ref(buffer._ring), list[object]()
    monkeypatch.setattr(replay_buffer, "Ring", lambda *args: kept.append(old()) or make(*args))
    buffer.take_part(1, num_envs=1)
    assert kept == [None]


def test_a_mixed_buffer_within_another_takes_its_part() -> None:
    buffer = rl.MixedBuffer(ReplayBuffer(100, OBS, ACTION, 4), rl.MixedBuffer(offline(seed=1), offline(seed=2)))
    buffer.take_part(1, num_envs=2)
    assert buffer.sample(4).index.shape == (4,)


def test_stacked_frames_keep_their_rows() -> None:
    buffer = ReplayBuffer(40, gym.spaces.Box(0, 1, (4, 2)), ACTION, 4, frame_stack=4)
    buffer.take_part(1, num_envs=1)
    assert (buffer.capacity, buffer.num_envs) == (10, 1)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_buffer_with_data_takes_no_part(kind: str) -> None:
    buffer = MAKERS[kind]()
    fill(buffer)
    with pytest.raises(ReplayBufferError, match=r"must be empty .*; it holds 4 transitions\. The offline part"):
        buffer.take_part(0, num_envs=2)
    assert num_online(buffer) == 4
    assert buffer.num_envs == 4


class FixedSampler(PrioritySampler):
    """A sampler of which no other one can be made."""

    of_size: Any = None


def test_a_sampler_must_say_how_another_one_is_made() -> None:
    buffer = ReplayBuffer(100, OBS, ACTION, 4)
    buffer.sampler = FixedSampler(buffer.num_slots, 0.5, 0.5, buffer.device)
    with pytest.raises(ParamsError, match=r"ReplayBuffer\.sampler: must have a method `of_size\(num_slots\)`"):
        buffer.take_part(0, num_envs=2)
    assert buffer.num_envs == 4


def test_a_rollout_buffer_becomes_a_part() -> None:
    buffer = RolloutBuffer(5, 4, OBS, ACTION, extra={"x": ((), torch.float32)})
    plain = RolloutBuffer(5, 2, OBS, ACTION, extra={"x": ((), torch.float32)})
    buffer.take_part(1, num_envs=2)
    assert (buffer.num_envs, buffer.nbytes, dict(buffer.extra)) == (2, plain.nbytes, dict(plain.extra))
    extra: dict[str, Tensor] = {"x": torch.zeros(2)}
    obs, flags = np.zeros((2, 3), np.float32), np.zeros(2, np.bool_)
    buffer.add(obs, np.zeros(2, np.int64), np.zeros(2), obs, flags, flags, extra=extra)
    assert buffer.rollout().reward.shape == (1, 2)
    buffer.take_part(0, num_envs=4)
    assert buffer.num_envs == 4
    assert not len(buffer)
