"""Which vector envs have an env in common, however they are wrapped."""

from typing import Any

import gymnasium as gym
import pytest
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import rltrainer as rl
from rltrainer.envs.vector_env import share_an_env
from tests.fakes import CountingEnv, counting_envs


class Holder(gym.vector.VectorEnv[Any, Any, Any]):
    """Wraps a vector env without being one of gymnasium's wrappers."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.num_envs = inner, inner.num_envs
        self.single_observation_space, self.single_action_space = (
            inner.single_observation_space,
            inner.single_action_space,
        )
        self.metadata = inner.metadata


def wrapped(env: Any) -> Any:
    return gym.wrappers.TimeLimit(env, 5)


def vector(backend: str, *envs: Any) -> Any:
    todo = iter(envs)
    if backend == "gymnasium":
        return gym.vector.SyncVectorEnv([lambda env=env: env for env in envs])
    return rl.make_vec(lambda: next(todo), len(envs), backend="sync")


@pytest.mark.parametrize(
    "one", [lambda x: x, RecordEpisodeStatistics, Holder, lambda x: Holder(RecordEpisodeStatistics(x))]
)
@pytest.mark.parametrize("other", [lambda x: x, RecordEpisodeStatistics, Holder])
def test_wrappers_of_the_same_vector_env(one: Any, other: Any) -> None:
    envs = counting_envs()
    assert share_an_env(one(envs), other(envs))
    assert not share_an_env(one(envs), other(counting_envs()))


@pytest.mark.parametrize("backend", ["ours", "gymnasium"])
@pytest.mark.parametrize("wrap", [lambda x: x, wrapped])
def test_vectors_of_the_same_single_env(backend: str, wrap: Any) -> None:
    env = CountingEnv()
    mine = vector("ours", CountingEnv(), env)
    assert share_an_env(mine, vector(backend, wrap(env), CountingEnv()))
    assert share_an_env(vector(backend, wrap(env), CountingEnv()), mine)
    assert not share_an_env(mine, vector(backend, CountingEnv(), CountingEnv()))


def test_single_envs_with_a_common_wrapper() -> None:
    shared = wrapped(CountingEnv())
    assert share_an_env(
        vector("ours", wrapped(shared)), vector("gymnasium", gym.wrappers.RecordEpisodeStatistics(shared))
    )
