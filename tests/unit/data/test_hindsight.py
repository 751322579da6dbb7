"""Goals in hindsight: which goals, which rewards, where windows end; bounds of traces; bad functions and spaces."""

import copy
import itertools
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from benchmarks.bit_flip import BitFlip
from rltrainer.data.hindsight import TrajectoryBounds
from rltrainer.errors import ParamsError, ReplayBufferError, SpaceError
from tests.unit.data.reference import Reference, make_buffer, played, raises

PLACE = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
SPACE = gym.spaces.Dict(observation=PLACE, achieved_goal=PLACE, desired_goal=PLACE)
ACTION = gym.spaces.Discrete(2)
TRUE_GOAL = 1000.0


def reached(achieved: Any, desired: Any, info: Any) -> Any:
    assert achieved.shape == desired.shape
    assert achieved.dtype == np.float32
    assert info == {}
    return (achieved == desired).all(-1)


def reward(achieved: Any, desired: Any, info: Any) -> Any:
    """Return 0 at the goal, and minus the distance to it elsewhere."""
    return -np.abs(achieved - desired)[:, 0]


def make(capacity: int = 20, **options: Any) -> rl.HindsightReplayBuffer:
    options = {"seed": 0, "compute_reward": reward, **options}
    return rl.HindsightReplayBuffer(capacity, SPACE, ACTION, **options)


def obs(place: float) -> dict[str, Any]:
    goal = np.full((1, 1), TRUE_GOAL, np.float32)
    return {"observation": np.array([[place]]), "achieved_goal": np.array([[place]]), "desired_goal": goal}


def walk(buffer: rl.ReplayBuffer, places: list[float], terminated: bool = False, truncated: bool = False) -> None:
    """Store the steps from each place to the next; the last one ends the episode as told."""
    for here, after in itertools.pairwise(places):
        ends = np.array([after == places[-1]])
        buffer.add(obs(here), [0], [after - TRUE_GOAL], obs(after), ends & terminated, ends & truncated)
    if not (terminated or truncated):
        buffer.end_trajectory()


def goals_by_place(batch: rl.Transitions) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for place, goal in torch.cat([batch.obs["observation"], batch.obs["desired_goal"]], 1).int().tolist():
        found.setdefault(place, set()).add(goal)
    return found


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("future", {0: {1, 2, 3, 4}, 1: {2, 3, 4}, 2: {3, 4}, 3: {4}, 10: {11, 12}, 11: {12}}),
        ("final", {0: {4}, 1: {4}, 2: {4}, 3: {4}, 10: {12}, 11: {12}}),
        ("episode", {0: {1, 2, 3, 4}, 1: {1, 2, 3, 4}, 2: {1, 2, 3, 4}, 3: {1, 2, 3, 4}, 10: {11, 12}, 11: {11, 12}}),
    ],
)
def test_goals_worked_by_hand(strategy: Any, expected: dict[int, set[int]]) -> None:
    # An episode of 4 from 0 to 4, and two steps of one that goes on. What is achieved is the successor's.
    buffer = make(strategy=strategy)
    walk(buffer, [0, 1, 2, 3, 4], truncated=True)
    walk(buffer, [10, 11, 12])
    batch = buffer.sample(3000)
    assert goals_by_place(batch) == {place: goals | {1000} for place, goals in expected.items()}
    assert torch.equal(batch.obs["desired_goal"], batch.next_obs["desired_goal"])
    distance = (batch.next_obs["achieved_goal"] - batch.obs["desired_goal"]).abs()[:, 0]
    assert torch.equal(batch.reward, -distance)
    assert torch.equal(batch.next_obs["observation"], batch.obs["observation"] + 1)
    assert torch.equal(batch.obs["achieved_goal"], batch.obs["observation"])


@pytest.mark.parametrize(("num_goals", "share"), [(1, 0.5), (4, 0.8)])
def test_shares(num_goals: int, share: float) -> None:
    # 10,000 draws: standard deviations at most 0.005. Future goals of the first transition of four: a quarter each.
    buffer = make(num_goals=num_goals)
    walk(buffer, [0, 1, 2, 3, 4], truncated=True)
    batch = buffer.sample(10_000)
    goal = batch.obs["desired_goal"][:, 0]
    assert float((goal != TRUE_GOAL).float().mean()) == pytest.approx(share, abs=0.02)
    of_first = goal[(batch.obs["observation"][:, 0] == 0) & (goal != TRUE_GOAL)]
    assert torch.bincount(of_first.long())[1:].tolist() == pytest.approx([len(of_first) / 4] * 4, rel=0.2)


def test_all_rewards_of_a_window_have_one_goal() -> None:
    # From 0 with 3 steps: goal 4 costs 3 + 2 / 2 + 1 / 4, goal 2 costs 1 + 0 / 2 + 1 / 4; from 3 a single step is left.
    buffer = make(strategy="episode")
    walk(buffer, [0, 1, 2, 3, 4], truncated=True)
    batch = buffer.sample(3000, n_step=3, gamma=0.5)
    columns = (batch.obs["observation"][:, 0], batch.obs["desired_goal"][:, 0], batch.reward, batch.discount)
    found = {(int(place), int(goal)): (float(r), float(d)) for place, goal, r, d in zip(*columns, strict=True)}
    for (place, goal), (value, discount) in found.items():
        after = [place + 1 + i for i in range(min(3, 4 - place))]
        assert value == pytest.approx(-sum(abs(p - goal) * 0.5**i for i, p in enumerate(after)))
        assert discount == 0.5 ** len(after)
    assert found[0, 4] == (-(3 + 2 / 2 + 1 / 4), 0.125)
    assert found[0, 2] == (-(1 + 0 / 2 + 1 / 4), 0.125)


def test_a_window_ends_where_its_goal_is_reached() -> None:
    # The data ended at its true goal 4. With goal 2 the window of 0 ends after two steps; with goal 4 after three (n).
    buffer = make(strategy="episode", compute_terminated=reached, compute_reward=lambda a, d, i: reached(a, d, i) - 1.0)
    walk(buffer, [0, 1, 2, 3, 4], terminated=True)
    batch = buffer.sample(5000, n_step=3, gamma=0.5)
    columns = (batch.obs["observation"][:, 0], batch.obs["desired_goal"][:, 0], batch.reward, batch.discount)
    columns += (batch.terminated, batch.truncated, batch.next_obs["observation"][:, 0])
    found = {(int(place), int(goal)): tuple(map(float, rest)) for place, goal, *rest in zip(*columns, strict=True)}
    assert found[0, 1] == (0, 0, True, False, 1)
    assert found[0, 2] == (-1, 0, True, False, 2)
    assert found[0, 3] == (-1.5, 0, True, False, 3)
    assert found[0, 4] == (-1.75, 0.125, False, False, 3)
    assert found[2, 4] == (-1, 0, True, False, 4)
    # The end of the data is not where goal 1 is reached: the episode broke off there, and is bootstrapped.
    assert found[2, 1] == (-1.5, 0.25, False, True, 4)
    assert found[3, 1] == (-1, 0.5, False, True, 4)
    assert found[3, 1000] == (4 - 1000, 0, True, False, 4)  # as stored


def test_without_a_function_for_it_episodes_end_where_they_ended() -> None:
    buffer = make(strategy="episode")
    walk(buffer, [0, 1, 2], terminated=True)
    batch = buffer.sample(200)
    assert torch.equal(batch.terminated, batch.obs["observation"][:, 0] == 1)
    assert torch.equal(batch.discount == 0, batch.terminated)


def test_rewards_are_asked_for_once_per_sample() -> None:
    calls = []
    buffer = make(compute_reward=lambda a, d, i: calls.append(len(a)) or reward(a, d, i))
    walk(buffer, [0, 1, 2, 3, 4], truncated=True)
    buffer.sample(50, n_step=2, num_batches=2)
    assert len(calls) == 1
    assert 2 * 60 < calls[0] < 2 * 100


def test_equal_seeds_relabel_equally_and_copies_go_on_apart(tmp_path: Path) -> None:
    one = make()
    walk(one, [0, 1, 2, 3, 4], truncated=True)
    one.sample(3)
    twin = copy.deepcopy(one)
    one.save(tmp_path / "buffer.safetensors")
    loaded = rl.HindsightReplayBuffer.load(tmp_path / "buffer.safetensors", compute_reward=reward)
    restored = make(seed=3)
    restored.load_state_dict(one.state_dict())
    batch = one.sample(50)
    for other in (twin, loaded, restored):
        again = other.sample(50)
        assert torch.equal(batch.obs["desired_goal"], again.obs["desired_goal"])
        assert torch.equal(batch.reward, again.reward)
    walk(twin, [50, 51, 52])
    assert 50 not in goals_by_place(one.sample(200))
    assert goals_by_place(twin.sample(500))[50] == {51, 52, 1000}


def test_from_a_file_of_a_uniform_buffer_of_another_size(tmp_path: Path) -> None:
    uniform = rl.ReplayBuffer(20, SPACE, ACTION)
    walk(uniform, [0, 1, 2, 3, 4], truncated=True)
    walk(uniform, [10, 11, 12])
    uniform.save(tmp_path / "buffer.safetensors")
    buffer = rl.HindsightReplayBuffer.load(tmp_path / "buffer.safetensors", capacity=4, compute_reward=reward)
    expected = {2: {3, 4, 1000}, 3: {4, 1000}, 10: {11, 12, 1000}, 11: {12, 1000}}
    assert goals_by_place(buffer.sample(1000)) == expected


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_bounds_equal_brute_force(seed: int, num_envs: int) -> None:
    rng = np.random.default_rng(seed)
    buffer, reference = make_buffer(9 * num_envs, num_envs), Reference(9, num_envs)
    bounds = TrajectoryBounds()
    for step in played(buffer, reference, seed, 150):
        if step == 70:
            buffer.clear()
            reference.streams = [[] for _ in range(num_envs)]
        if step == 100:
            buffer.load_state_dict(copy.deepcopy(buffer.state_dict()))
        if rng.random() < 0.7:  # now and then more is stored than fits before the bounds are asked for
            continue
        cells = torch.cat([torch.arange(0), *buffer._ring.all_slots(1000)])
        numbers = buffer._ring.columns["obs"].gather(cells)[:, 0].long().tolist()
        found = np.stack(bounds.of(buffer._ring, cells.numpy())).T.tolist()
        expected = {all_[i].obs: (i - begin, end - i) for all_, i, begin, end in reference.spans()}
        assert dict(zip(numbers, map(tuple, found), strict=True)) == expected


def test_envs_that_are_filled_unequally() -> None:
    buffer = rl.HindsightReplayBuffer(20, SPACE, ACTION, 2, seed=0, compute_reward=reward)
    single = rl.ReplayBuffer(20, SPACE, ACTION)
    walk(single, [0, 1, 2, 3], truncated=True)
    walk(single, [10, 11, 12])
    buffer.extend(single)
    assert goals_by_place(buffer.sample(1000)) == {
        0: {1, 2, 3, 1000}, 1: {2, 3, 1000}, 2: {3, 1000}, 10: {11, 12, 1000}, 11: {12, 1000}
    }  # fmt: skip


def test_the_functions_of_an_env() -> None:
    env = gym.wrappers.TimeLimit(BitFlip(4), 9)
    buffer = rl.HindsightReplayBuffer.for_env(env, 100, 2, strategy="final", seed=1)
    rl.seed(1)
    envs = rl.make_vec(lambda: BitFlip(4), 2, backend="sync", seed=1)
    policy = rl.QNetwork.for_envs(envs, hidden_sizes=(8,))
    rl.Collector(policy, envs, buffer).collect(num_steps=100, random=True)
    batch = buffer.sample(200)
    is_reached = (batch.next_obs["achieved_goal"] == batch.obs["desired_goal"]).all(1)
    assert torch.equal(batch.terminated, is_reached)
    assert torch.equal(batch.reward, is_reached.float() - 1)
    assert float(is_reached.float().mean()) > 0.2


def test_envs_that_have_no_functions() -> None:
    plain = gym.make("CartPole-v1")
    vector = gym.vector.SyncVectorEnv([lambda: BitFlip(4)])
    rule = "must be a single gymnasium.Env with a `compute_reward`"
    for env, got in (("CartPole-v1", "'CartPole-v1' (str)"), (vector, "SyncVectorEnv("), (plain, "<TimeLimit")):
        with raises(ParamsError, f"HindsightReplayBuffer.for_env.env: {rule}; got {got}"):
            rl.HindsightReplayBuffer.for_env(env, 10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (lambda n: 1.0, "got shape () of float64"),
        (lambda n: np.zeros((n, 1)), "1) of float64"),
        (lambda n: np.zeros(n + 1), "of float64"),
        (lambda n: np.full(n, np.nan), "of float64"),
        (lambda n: None, "of object"),
        (lambda n: np.array(["a"] * n), "of <U1"),
    ],
)
def test_rewards_of_the_wrong_shape(found: Any, text: str) -> None:
    for name in ("compute_reward", "compute_terminated"):
        buffer = make(**{name: lambda achieved, desired, info: found(len(achieved))})
        walk(buffer, [0, 1, 2], truncated=True)
        rule = rf"HindsightReplayBuffer.{name}: must return one finite number per goal, of shape \("
        with pytest.raises(ReplayBufferError, match=f"{rule}.*{re.escape(text)}.* It gets many goals in one call, and"):
            buffer.sample(50)


def test_one_flag_of_a_batch_of_goals_is_refused() -> None:
    """It is that of the distance between two tables of goals, which is 0 where each goal is reached."""
    buffer = make(compute_terminated=lambda achieved, desired, info: np.linalg.norm(achieved - desired) < 0.5)
    walk(buffer, [0, 1, 2], truncated=True)
    with raises(ReplayBufferError, "compute_terminated: must return one finite number per goal, of shape"):
        buffer.sample(50)


def test_one_flag_for_all_says_whether_any_episode_ends() -> None:
    buffer = make(compute_terminated=lambda achieved, desired, info: False)
    walk(buffer, [0, 1, 2], terminated=True)
    batch = buffer.sample(100)
    assert torch.equal(batch.terminated, (batch.obs["desired_goal"] == TRUE_GOAL)[:, 0] & (batch.index == 1))


def test_observations_without_goals() -> None:
    text = "must be a Dict with the leaves 'achieved_goal' and 'desired_goal' of one shape"
    wide = gym.spaces.Dict(achieved_goal=PLACE, desired_goal=gym.spaces.Box(-1, 1, (2,)))
    without, nested = (gym.spaces.Dict(achieved_goal=x, desired_goal=y) for x, y in ((PLACE, SPACE), (SPACE, SPACE)))
    for space in (PLACE, gym.spaces.Dict(observation=PLACE, achieved_goal=PLACE), wide, without, nested):
        with raises(SpaceError, f"HindsightReplayBuffer.observation_space: {text}"):
            rl.HindsightReplayBuffer(10, space, ACTION, compute_reward=reward)
