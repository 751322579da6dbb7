"""What a buffer says of itself, in numbers worked out by hand."""

from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rltrainer.data import ReplayBuffer
from rltrainer.data.buffer_description import ActionCoverage, ObservationRange, stored_episodes
from tests.unit.data.reference import Reference, World, cell, fill, make_buffer, make_rollout


def one_env(cells: list[tuple[int, float, str]], capacity: int = 100, **options: Any) -> ReplayBuffer:
    """Store (observation, reward, end) in one env; `t`, `u`, `b`: terminated, truncated, both."""
    made = (cell(obs, reward, end=end, action=obs % 5) for obs, reward, end in cells)
    return fill(make_buffer(capacity, **options), *made)


# Returns 1 + 2 = 3, 4 (a time limit), 8 + 16 = 24 (a time limit), and 32 of an episode that goes on.
FOUR = [(0, 1.0, ""), (1, 2.0, "t"), (5, 4.0, "u"), (7, 8.0, ""), (8, 16.0, "u"), (12, 32.0, "")]


def test_episodes_returns_and_lengths() -> None:
    found = one_env(FOUR).describe()
    assert (found.num_transitions, found.num_episodes, found.num_unfinished) == (6, 3, 1)
    assert (found.num_terminated, found.num_truncated) == (1, 2)
    assert (found.time_limit, found.num_at_time_limit) == (1, 1)  # lengths 1 and 2, once each: the shorter
    returns: Any = found.returns
    lengths: Any = found.lengths
    # Quartiles are halfway between neighbours of three numbers.
    assert [getattr(returns, name) for name in returns.__slots__[2:]] == [3, 3.5, 4, 14, 24]
    assert found.score == returns.mean == pytest.approx(31 / 3)
    assert returns.std == pytest.approx(np.std([3, 4, 24]))
    assert (lengths.minimum, lengths.median, lengths.mean) == (1, 2, pytest.approx(5 / 3))
    assert found.normalized_score is None


def test_a_score_between_two_others() -> None:
    found = one_env([(0, 4.0, "b")]).describe((2, 10.0))
    assert found.normalized_score == 0.25
    assert (found.num_terminated, found.num_truncated, found.time_limit) == (1, 0, None)  # both count as terminated
    assert one_env([]).describe((2, 10)).normalized_score is None


def test_an_episode_without_its_beginning_does_not_count() -> None:
    # Five transitions fit: that of observation 0 is gone, and the episode that it began is no longer whole.
    found = one_env(FOUR, 5).describe()
    assert (found.num_transitions, found.num_episodes, found.num_unfinished) == (5, 2, 2)
    assert found.returns is not None
    assert found.returns.minimum == 4.0
    # Two fit: the end of the last episode and the beginning of another.
    assert one_env(FOUR, 2).describe().num_episodes == 0


def test_an_empty_buffer() -> None:
    found = one_env([]).describe()
    assert (found.num_transitions, found.num_episodes, found.num_unfinished) == (0, 0, 0)
    assert (found.returns, found.lengths, found.score, found.actions) == (None, None, None, None)
    assert found.observations == ()
    assert "transitions 0\n" in str(found)


@pytest.mark.parametrize("seed", range(8))
def test_any_buffer_agrees_with_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_envs, cells_per_env = int(rng.integers(1, 5)), int(rng.integers(3, 30))
    world, buffer = World(seed, num_envs, 0.3), make_buffer(cells_per_env * num_envs, num_envs)
    reference, num_added = Reference(cells_per_env, num_envs), [0] * num_envs
    for _ in range(int(rng.integers(1, 60))):
        cells, valid = world.step()
        buffer.add_rollout(make_rollout([(cells, valid)]))
        for env in (env for env in range(num_envs) if valid[env]):
            previous = reference.streams[env][-1:]
            if previous and previous[0].next_obs != cells[env].obs:
                previous[0].broken = True
            reference.add(env, cells[env])
            num_added[env] += 1
    expected = []
    for env, stream in enumerate(reference.streams):
        trace, is_whole = [], num_added[env] <= cells_per_env
        for i, step in enumerate(stream):
            trace.append(step)
            ends = step.terminated or step.truncated
            if ends or step.broken or i == len(stream) - 1:
                expected.append((len(trace), sum(c.reward for c in trace), step.terminated, step.truncated, is_whole))
                trace, is_whole = [], True
    found = stored_episodes(buffer._ring)
    columns = (found.length, found.return_, found.terminated, found.truncated, found.is_whole)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert found.length.sum() == found.last.size == len(buffer)
    assert found.last.sum() == len(found.length)


def described(action_space: gym.Space[Any], actions: Any, **changes: Any) -> Any:
    data = {"observations": np.zeros((len(actions), 1)), "observation_space": gym.spaces.Box(-1, 1, (1,))} | changes
    size = len(actions)
    return ReplayBuffer.from_arrays(
        actions=np.asarray(actions),
        rewards=np.zeros(size),
        terminations=np.arange(size) == size - 1,
        truncations=np.zeros(size, bool),
        action_space=action_space,
        **data,
    ).describe()


def test_coverage_of_choices() -> None:
    found = described(gym.spaces.Discrete(4, start=-1), [-1, 0, 0, 2]).actions
    assert found == ActionCoverage(((0.25, 0.5, 0.0, 0.25),), None, None, 0.75)
    found = described(gym.spaces.MultiDiscrete([2, 3]), [[0, 2], [0, 2], [1, 0], [0, 1]]).actions
    assert found == ActionCoverage(((0.75, 0.25), (0.25, 0.25, 0.5)), None, None, 1.0)
    found = described(gym.spaces.MultiBinary(2), [[0, 1], [0, 1]]).actions
    assert found == ActionCoverage(((1.0, 0.0), (0.0, 1.0)), None, None, 0.5)


def test_coverage_of_ranges() -> None:
    space = gym.spaces.Box(*np.array([[-1, 0, -np.inf], [1, 4, np.inf]], np.float32))
    found = described(space, [[-0.5, 1, 100], [0.5, 2, 3], [0, 1, 3]]).actions
    # Half of [-1, 1], a quarter of [0, 4]; the third has no bounds to compare with.
    assert found == ActionCoverage(
        None, ((-0.5, 0.5), (1.0, 2.0), (3.0, 100.0)), ((-1.0, 1.0), (0.0, 4.0), (-np.inf, np.inf)), 0.375
    )
    assert described(gym.spaces.Box(-np.inf, np.inf, (1,)), [[1.0], [2.0]]).actions.covered is None


def test_observations_leaf_by_leaf() -> None:
    space = gym.spaces.Dict({"a": gym.spaces.Box(-9, 9, (3,)), "b": gym.spaces.Box(0, 255, (1, 2), np.uint8)})
    obs = {"a": np.array([[1, 2, 3], [1, 5, 3]]), "b": np.array([[[0, 7]], [[9, 7]]], np.uint8)}
    found = described(gym.spaces.Discrete(1), [0, 0], observations=obs, observation_space=space).observations
    assert found == (ObservationRange('["a"]', 3, 1.0, 5.0, (0, 2)), ObservationRange('["b"]', 2, 0.0, 9.0, (1,)))


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = one_env(FOUR)
    whole = buffer.describe()
    monkeypatch.setattr("rltrainer.data.buffer_description.CHUNK_SIZE", 2)
    assert buffer.describe() == whole


def test_frames_are_described_one_by_one() -> None:
    space = gym.spaces.Box(0, 255, (2, 1), np.uint8)
    buffer = ReplayBuffer(9, space, gym.spaces.Discrete(2), frame_stack=2)
    no, stacks = np.zeros(1, bool), np.array([[[[3], [3]]], [[[3], [8]]], [[[8], [200]]]], np.uint8)
    for obs, after in pairwise(stacks):
        buffer.add(obs, np.zeros(1, int), np.ones(1), after, no, no)
    assert buffer.describe().observations == (ObservationRange("", 1, 3.0, 8.0, ()),)


def test_names_from_a_file_move_no_cursor() -> None:
    space = gym.spaces.Dict({"a\x1b[2J\r": wide(2)})
    values = {"a\x1b[2J\r": np.zeros((2, 2), np.float32)}
    text = str(described(wide(2), np.zeros((2, 2)), observations=values, observation_space=space))
    assert r"a\x1b[2J\r" in text
    assert text.replace("\n", "").isprintable()


def test_the_table() -> None:
    assert str(one_env(FOUR).describe((0, 20.0))) == (
        "transitions 6\n"
        "episodes    3, and 1 unfinished\n"
        "ends        1 terminated, 2 truncated (1 at length 1)\n"
        "                  mean       std       min      25 %    median      75 %       max\n"
        "returns         10.333    9.6724         3       3.5         4        14        24\n"
        "lengths         1.6667    0.4714         1       1.5         2         2         2\n"
        "score       0.517, where 0 is 0 and 20 is 1\n"
        "actions     33.3%, 16.7%, 33.3%, 16.7%, 0.0%; 80% covered\n"
        "obs         2 numbers in [-12, 12]"
    )


def test_a_long_table_is_shortened() -> None:
    space = gym.spaces.Box(-1, 1, (12,))
    text = str(described(space, np.zeros((2, 12)), observations=np.zeros((2, 30)), observation_space=wide(30)))
    assert "actions     [0, 0] of [-1, 1]; 0% covered\n            [0, 0] of [-1, 1]\n" in text
    assert "            and 2 more\n" in text
    assert "constant: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more" in text


def wide(size: int) -> gym.Space[Any]:
    return gym.spaces.Box(-np.inf, np.inf, (size,))
