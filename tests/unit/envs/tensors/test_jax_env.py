"""Envs of gymnax and Brax, with a JAX made of PyTorch."""

import dataclasses
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

import rltrainer as rl
from rltrainer.errors import ParamsError, SpaceError
from tests.unit.envs.tensors import fake_jax


@pytest.fixture(autouse=True)
def _jax(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jax.install(monkeypatch)


@dataclasses.dataclass(frozen=True)
class EnvParams:
    max_steps_in_episode: int = 4
    replace = dataclasses.replace


class WalkState(NamedTuple):
    x: Tensor
    time: Tensor


class Walk:
    """As gymnax before 1.0: `done` counts the time limit. Walks to 3, from a place that its key decides."""

    counts_limit = True

    def observation_space(self, params: EnvParams) -> gym.Space[Any]:
        return Box(-9, 9, (2,), np.float32)

    def action_space(self, params: EnvParams) -> gym.Space[Any]:
        return Discrete(2)

    def reset_env(self, key: Tensor, params: EnvParams) -> Any:
        state = WalkState(-(key % 97) / 100, torch.tensor(0))
        return self.observe(state), state

    def step_env(self, key: Tensor, state: WalkState, action: Tensor, params: EnvParams) -> Any:
        assert action.dtype == torch.int32  # JAX has no int64, unless it is asked for
        state = WalkState(state.x + action, state.time + 1)
        done = state.x > 2
        if self.counts_limit:
            done = done | (state.time >= params.max_steps_in_episode)
        return self.observe(state), state, state.x * 0 + 1, done, {}

    def observe(self, state: WalkState) -> Tensor:
        return torch.stack([state.x, state.time.float()])


class NewWalk(Walk):
    """As gymnax from 1.0 on: `done` does not count the time limit."""

    counts_limit = False


class PointState(NamedTuple):
    obs: Any
    reward: Tensor
    done: Tensor


class Point:
    """An env of Brax, with groups of observations as MuJoCo Playground has them; it is done beyond 1."""

    action_size = 1

    def reset(self, key: Tensor) -> PointState:
        return PointState(self.observe(-(key[None] % 97) / 100), torch.tensor(0.0), torch.tensor(0.0))

    def step(self, state: PointState, action: Tensor) -> PointState:
        x = state.obs["state"] + action
        return PointState(self.observe(x), x[0].double(), (x[0] > 1).float())

    def observe(self, x: Tensor) -> Any:
        return {"state": x, "privileged_state": torch.cat([x, x])}


# Env 0 walks from below 0 beyond 2 in 3 steps and terminates. Env 1 stands still, and the limit of 4 truncates it.
@pytest.mark.parametrize("kind", [Walk, NewWalk])
def test_the_limit_of_gymnax_truncates(kind: Any) -> None:
    envs = rl.GymnaxVectorEnv(kind(), EnvParams(), 2)
    first, _ = envs.reset(seed=3)
    flags = []
    for number in range(1, 5):
        obs, reward, terminated, truncated, info = envs.step(torch.tensor([1, 0]))
        assert (reward.tolist(), reward.dtype) == ([1.0, 1.0], torch.float32)
        assert info["_final_obs"].tolist() == (terminated | truncated).tolist()
        flags.append((terminated.tolist(), truncated.tolist()))
        torch.testing.assert_close(info["final_obs"][1], first[1] + torch.tensor([0, number]))
        if number == 3:
            torch.testing.assert_close(info["final_obs"][0], first[0] + 3)
            assert obs[0, 1] == 0
            assert obs[0, 0] != first[0, 0]  # another episode begins elsewhere
    none = [False, False]
    assert flags == [(none, none)] * 2 + [([True, False], none), (none, [False, True])]
    assert obs[:, 1].tolist() == [1, 0]


def test_an_env_continues_where_others_begin_again() -> None:
    envs = rl.GymnaxVectorEnv(Walk(), EnvParams(max_steps_in_episode=100), 3)
    first, _ = envs.reset(seed=3)
    for _ in range(3):
        obs, _, terminated, _, info = envs.step(torch.tensor([1, 1, 0]))
    assert terminated.tolist() == [True, True, False]
    assert obs[:, 1].tolist() == [0, 0, 3]
    assert info["final_obs"][:, 1].tolist() == [3, 3, 3]
    assert obs[2, 0] == first[2, 0]


def test_spaces_and_device() -> None:
    envs = rl.GymnaxVectorEnv(Walk(), EnvParams(), 2)
    assert envs.single_observation_space == Box(-np.inf, np.inf, (2,), np.float32)
    assert (envs.single_action_space, envs.num_envs) == (Discrete(2), 2)
    assert envs.device == torch.device("cpu")
    points = rl.BraxVectorEnv(Point(), 2, obs_groups="state")
    assert points.single_action_space == Box(-1, 1, (1,), np.float32)
    assert points.single_observation_space == Box(-np.inf, np.inf, (1,), np.float32)
    assert list(rl.BraxVectorEnv(Point(), 2).single_observation_space) == ["privileged_state", "state"]


def test_brax_terminates_and_is_truncated() -> None:
    envs = rl.BraxVectorEnv(Point(), 2, episode_length=3, obs_groups="state")
    first, _ = envs.reset(seed=4)
    flags = []
    for _ in range(3):
        obs, reward, terminated, truncated, info = envs.step(torch.tensor([[0.5], [0.0]]))
        assert reward.dtype == torch.float32
        flags.append((terminated.tolist(), truncated.tolist()))
    assert first[0] > -0.5
    assert flags == [([False] * 2, [False] * 2)] * 2 + [([True, False], [True, True])]
    torch.testing.assert_close(info["final_obs"], first + torch.tensor([[1.5], [0.0]]))
    assert not torch.equal(obs, first)


def test_seeds() -> None:
    envs = rl.GymnaxVectorEnv(Walk(), EnvParams(), 2)

    def first(seed: int | None) -> Any:
        torch.manual_seed(1)
        return envs.reset(seed=seed)[0].tolist()

    assert first(1) == first(1) != first(2)
    assert first(None) == first(None)
    envs.reset()
    assert envs.reset()[0].tolist() != first(None)


def test_a_state_is_continued() -> None:
    envs, others = (rl.GymnaxVectorEnv(Walk(), EnvParams(), 2) for _ in range(2))
    assert isinstance(envs, rl.SaveableEnv)
    envs.reset(seed=1)
    others.reset(seed=2)
    envs.step(torch.tensor([1, 0]))
    state = envs.state_dict()
    expected = [envs.step(torch.tensor([1, 1]))[0].tolist() for _ in range(6)]
    others.load_state_dict(state)
    assert [others.step(torch.tensor([1, 1]))[0].tolist() for _ in range(6)] == expected


# Errors


def test_envs_that_are_no_envs_of_gymnax_or_brax() -> None:
    with pytest.raises(ParamsError, match="GymnaxVectorEnv.env: must have step_env, reset_env, action_space; got 3"):
        rl.GymnaxVectorEnv(3, EnvParams(), 2)
    with pytest.raises(ParamsError, match="GymnaxVectorEnv.params: must have max_steps_in_episode; got None"):
        rl.GymnaxVectorEnv(Walk(), None, 2)
    with pytest.raises(ParamsError, match="BraxVectorEnv.env: must have action_size, reset; got 3"):
        rl.BraxVectorEnv(3, 2)
    with pytest.raises(ParamsError, match="BraxVectorEnv.episode_length: must be a positive integer; got 0"):
        rl.BraxVectorEnv(Point(), 2, episode_length=0)
    with pytest.raises(ParamsError, match="GymnaxVectorEnv.num_envs: must be a positive integer; got -1"):
        rl.GymnaxVectorEnv(Walk(), EnvParams(), -1)
    with pytest.raises(SpaceError, match="BraxVectorEnv.obs_groups: must name groups of the observation"):
        rl.BraxVectorEnv(Point(), 2, obs_groups="policy")
