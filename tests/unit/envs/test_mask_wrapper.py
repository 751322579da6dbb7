"""Masks from an info or a method become a leaf of the observation."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rltrainer as rl
from rltrainer.errors import EnvError, SpaceError
from tests.fakes import CountingEnv

MULTI = spaces.MultiDiscrete([2, 3])


class InInfo(CountingEnv):
    """Allows the choice of the number of the step, and says so in its info."""

    def __init__(self, mask: Any = None, **options: Any) -> None:
        super().__init__(action_space=spaces.Discrete(3), **options)
        self.mask = mask

    def now(self) -> Any:
        return np.arange(3) == self.step_count if self.mask is None else self.mask

    def reset(self, **options: Any) -> Any:
        obs, _ = super().reset(**options)
        return obs, {"action_mask": self.now()}

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"action_mask": self.now()}


class ByMethod(CountingEnv):
    """Has the method that Stable-Baselines3-contrib asks for."""

    def action_masks(self) -> list[bool]:
        return [True, False]


class OfDict(gym.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict(a=env.observation_space)

    def observation(self, observation: Any) -> Any:
        return {"a": observation}


def test_masks_from_infos() -> None:
    env = rl.ActionMask(InInfo())
    obs, _ = env.reset(seed=1)
    assert obs["action_mask"].tolist() == [1, 0, 0]
    assert obs["observation"].tolist() == [1, 0]
    assert env.observation_space.contains(obs)
    obs, *_ = env.step(0)
    assert obs["action_mask"].tolist() == [0, 1, 0]
    assert env.observation_space.contains(obs)


def test_masks_from_a_method_behind_other_wrappers() -> None:
    env = rl.ActionMask(OfDict(ByMethod()))
    obs, _ = env.reset(seed=1)
    assert sorted(obs) == ["a", "action_mask"]
    assert obs["action_mask"].tolist() == [1, 0]
    assert env.observation_space.contains(obs)


@pytest.mark.parametrize("mask", [[True, False, True], [1, 0, 1], np.array([1.0, 0.0, 1.0])])
def test_every_kind_of_flags(mask: Any) -> None:
    assert rl.ActionMask(InInfo(mask)).reset()[0]["action_mask"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_in_vector_envs(backend: Any) -> None:
    envs = rl.make_vec(InInfo, 2, backend=backend, wrappers=[rl.ActionMask])
    try:
        policy = rl.ActorCritic.for_envs(envs, hidden_sizes=(8,))
        buffer = rl.RolloutBuffer(3, 2, envs.single_observation_space, envs.single_action_space)
        one = rl.Collector(policy, envs, buffer)
        one.collect(num_steps=6)
        assert one.rollout().action.tolist() == [[0, 0], [1, 1], [2, 2]]
    finally:
        envs.close()


@pytest.mark.parametrize("mask", [[1, 0], [[1, 0, 1]], 1, ["a", "b", "c"]])
def test_a_mask_of_another_shape_is_an_error(mask: Any) -> None:
    with pytest.raises(SpaceError, match=r"^ActionMask: expected flags of shape \(3,\), got "):
        rl.ActionMask(InInfo(mask)).reset()


def test_an_env_without_a_mask_is_an_error() -> None:
    with pytest.raises(EnvError, match=r'^ActionMask: .*CountingEnv.* has neither info\["action_mask"\] nor a method'):
        rl.ActionMask(CountingEnv()).reset()


def test_actions_that_are_no_choices_are_an_error() -> None:
    with pytest.raises(
        SpaceError, match=r"^ActionMask.env.action_space: must be Discrete, MultiDiscrete or MultiBinary; got Box"
    ):
        rl.ActionMask(CountingEnv(action_space=spaces.Box(-1.0, 1.0, (1,))))


def test_several_choices_have_one_mask() -> None:
    env = rl.ActionMask(CountingEnv(action_space=MULTI))
    space: Any = env.observation_space
    assert space["action_mask"] == spaces.MultiBinary(5)
