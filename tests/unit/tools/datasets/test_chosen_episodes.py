"""Episodes that are chosen keep everything: order, ends, successors, flags, extras."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rltrainer.data import ReplayBuffer
from rltrainer.tools import datasets
from tests.unit.data.reference import ACTION, OBS, World, add_step, as_obs, cell, fill, found, make_buffer, make_rollout


def four_episodes(num_envs: int = 1, **options: Any) -> ReplayBuffer:
    """Hold returns 3 (0, 1), 4 (5), 24 (7, 8) and, of an episode that goes on, 32 (12), in each env shifted by 100."""
    buffer = make_buffer(100 * num_envs, num_envs, **options)
    rows = [(0, 1.0, ""), (1, 2.0, "t"), (5, 4.0, "u"), (7, 8.0, ""), (8, 16.0, "u"), (12, 32.0, "")]
    for obs, reward, end in rows:
        envs = range(num_envs)
        add_step(buffer, None, [cell(obs + 100 * env, reward + env, end=end, action=obs % 5) for env in envs])
    return buffer


def held(buffer: ReplayBuffer, n_step: int = 1) -> dict[int, tuple[float, ...]]:
    return found(buffer.sample(60 * len(buffer), n_step=n_step, gamma=0.5))


def test_the_best_by_share_and_by_number() -> None:
    buffer = four_episodes()
    assert sorted(held(datasets.best_episodes(buffer, share=0.3))) == [7, 8]
    assert sorted(held(datasets.best_episodes(buffer, share=0.34))) == [5, 7, 8]  # 1.02 episodes: rounded up
    assert sorted(held(datasets.best_episodes(buffer, num_episodes=2))) == [5, 7, 8]
    # The one that goes on has the highest return, and is no episode yet.
    assert sorted(held(datasets.best_episodes(buffer, num_episodes=9))) == [0, 1, 5, 7, 8]
    assert sorted(held(buffer)) == [0, 1, 5, 7, 8, 12]


def test_a_share_of_a_hundred_is_not_rounded_up() -> None:
    buffer = fill(make_buffer(100), *(cell(10 * i, float(i), end="t") for i in range(100)))
    assert len(datasets.best_episodes(buffer, share=0.07)) == 7
    assert len(datasets.best_episodes(buffer, share=1.0)) == 100


def test_everything_stays_as_it_was() -> None:
    buffer = four_episodes()
    best = datasets.best_episodes(buffer, num_episodes=3)
    all_of_it, of_best = held(buffer, 3), held(best, 3)
    # 0: 1 + 2 / 2, terminated; 7: 8 + 16 / 2, truncated, with its true successor 9.
    assert of_best == {obs: all_of_it[obs] for obs in (0, 1, 5, 7, 8)}
    assert of_best[0] == (0, 2.0, 2.0, True, False, 0.0)
    assert of_best[7] == (2, 16.0, 9.0, False, True, 0.25)
    assert (best.capacity, best.num_envs, best.observation_space) == (5, 1, OBS)
    # What is added goes on with nothing.
    fill(best, cell(99, 0.0, 98))
    assert held(best, 3)[8] == of_best[8]


def test_equal_returns_are_taken_in_their_order() -> None:
    buffer = fill(make_buffer(9), *(cell(10 * i, end="t") for i in range(3)))
    assert sorted(held(datasets.best_episodes(buffer, num_episodes=2))) == [0, 10]


def test_those_of_a_return() -> None:
    buffer = four_episodes(2)  # env 1 has returns 5, 5 and 26
    assert sorted(held(datasets.episodes_with_return(buffer, at_least=24.0))) == [7, 8, 107, 108]
    assert sorted(held(datasets.episodes_with_return(buffer, at_least=4.5))) == [7, 8, 100, 101, 105, 107, 108]


def test_two_parts_are_all_of_it() -> None:
    buffer = four_episodes(3)
    first, second = datasets.split_episodes(buffer, 0.75, seed=3)
    assert (first.describe().num_episodes + first.describe().num_unfinished) == 9  # 0.75 of 12
    assert held(first) | held(second) == held(buffer)
    assert len(first) + len(second) == len(buffer) == 18
    again = datasets.split_episodes(buffer, 0.75, seed=3)
    assert [sorted(held(part)) for part in again] == [sorted(held(first)), sorted(held(second))]
    draws = {tuple(sorted(held(datasets.split_episodes(buffer, 0.5, seed=seed)[0]))) for seed in range(6)}
    assert len(draws) > 1


def test_each_part_gets_an_episode() -> None:
    for share, sizes in ((0.0, [1, 3]), (0.5, [2, 2]), (1.0, [3, 1])):
        parts = [part.describe() for part in datasets.split_episodes(four_episodes(), share)]
        assert [part.num_episodes + part.num_unfinished for part in parts] == sizes


def test_an_episode_without_its_beginning_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    buffer = make_buffer(5)
    for i in range(7):  # 0 1 2 | 3 4 5 | 6: of the first the ring has forgotten two
        ended = i % 3 == 2
        fill(buffer, cell(10 * i, 1.0, 10 * i + (5 if ended else 10), "t" if ended else ""))
    first, second = datasets.split_episodes(buffer, 0.5)
    assert sorted(held(first) | held(second)) == [30, 40, 50, 60]
    assert caplog.messages == [
        "split_episodes: 1 of 5 transitions belong to episodes whose beginning was overwritten, and are left out"
    ]
    assert sorted(held(datasets.best_episodes(buffer, share=1.0))) == [30, 40, 50]


def test_extras_and_trees_come_along() -> None:
    space = gym.spaces.Dict({"a": OBS, "b": gym.spaces.Discrete(9)})
    buffer = ReplayBuffer(9, space, ACTION, extra={"log_prob": ((2,), torch.float32)})
    for i in range(4):
        obs, after = ({"a": as_obs([n]), "b": np.array([n])} for n in (2 * i, 2 * i + 1))
        yes, extra = np.ones(1, bool), {"log_prob": np.full((1, 2), float(i))}
        buffer.add(obs, np.zeros(1, int), np.full(1, float(i)), after, yes, ~yes, extra)
    batch = datasets.best_episodes(buffer, num_episodes=2).sample(40)
    columns = (batch.obs["a"][:, 0], batch.obs["b"], batch.next_obs["b"], batch.extra["log_prob"][:, 1])
    assert set(zip(*(x.tolist() for x in columns), strict=True)) == {(4.0, 4, 5, 2.0), (6.0, 6, 7, 3.0)}


@pytest.mark.parametrize("length", [1, 2])
def test_stacked_frames_are_stacked_as_before(length: int) -> None:
    space = gym.spaces.Box(0, 255, (2, 1), np.uint8)
    buffer = ReplayBuffer(9, space, gym.spaces.Discrete(2), frame_stack=2)
    no = np.zeros(1, bool)
    for episode in range(2):  # frames 0 1 2 with reward 0, then 10 11 12 with reward 1
        frames = [10 * episode, 10 * episode, 10 * episode + 1, 10 * episode + 2]
        for i in range(length):
            stack, after = (np.array([[[frames[j]], [frames[j + 1]]]], np.uint8) for j in (i, i + 1))
            buffer.add(stack, np.zeros(1, int), np.full(1, float(episode)), after, no | (i == length - 1), no)
    batch = datasets.best_episodes(buffer, num_episodes=1).sample(40)
    stacks = {tuple(each) for each in torch.cat([batch.obs, batch.next_obs], 1).flatten(1).tolist()}
    assert stacks == set([(10, 10, 10, 11), (10, 11, 11, 12)][:length])


@pytest.mark.parametrize("seed", range(6))
def test_parts_of_any_buffer_agree_with_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    monkeypatch.setattr("rltrainer.data.transition_sources.CHUNK_SIZE", int(rng.choice([1, 7, 1000])))
    num_envs = int(rng.integers(1, 4))
    world, buffer = World(seed, num_envs, 0.3), make_buffer(200 * num_envs, num_envs)
    for _ in range(12):
        buffer.add_rollout(make_rollout([world.step() for _ in range(5)]))
    parts = datasets.split_episodes(buffer, 0.6, seed=seed)
    for n_step in (1, 3):
        assert held(parts[0], n_step) | held(parts[1], n_step) == held(buffer, n_step)
    whole, halves = buffer.describe(), [part.describe() for part in parts]
    for name in ("num_transitions", "num_episodes", "num_unfinished", "num_terminated", "num_truncated"):
        assert sum(getattr(half, name) for half in halves) == getattr(whole, name)
