"""Wrappers of single envs: rendered frames and masks as observations."""

from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rltrainer as rl
from rltrainer.errors import ParamsError, SpaceError
from tests.fakes import CountingEnv


class Drawn(CountingEnv):
    """Draws the number of the step into the first pixel; the others are as given."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as gymnasium has it

    def __init__(self, frame: Any = None, render_mode: str | None = "rgb_array", **options: Any) -> None:
        super().__init__(**options)
        self.render_mode = render_mode
        self.frame = np.zeros((40, 60, 3), np.uint8) if frame is None else frame

    def render(self) -> Any:
        if isinstance(self.frame, np.ndarray):
            self.frame.reshape(-1)[0] = self.step_count
        return self.frame


class OfDict(gym.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: Any, key: str) -> None:
        super().__init__(env)
        self.key, self.observation_space = key, spaces.Dict({key: env.observation_space})

    def observation(self, observation: Any) -> Any:
        return {self.key: observation}


def fixed(values: Any) -> Any:
    """Return an env whose frames have these values in all colours, or these colours."""
    shades = np.array(values, np.uint8)
    env = Drawn(np.repeat(shades[..., None], 3, -1) if shades.ndim == 2 else shades)
    env.render = lambda: env.frame  # type: ignore[method-assign]  # draws nothing into it
    return env


# Frames


def test_frames_as_they_are_rendered() -> None:
    env = rl.PixelObservation(Drawn())
    obs, _ = env.reset(seed=3)
    assert env.observation_space == spaces.Box(0, 255, (40, 60, 3), np.uint8)
    assert (obs.dtype, obs.shape, obs[0, 0].tolist()) == (np.uint8, (40, 60, 3), [0, 0, 0])
    obs, reward, terminated, truncated, _ = env.step(0)
    assert (obs[0, 0].tolist(), reward, terminated, truncated) == ([1, 0, 0], 1.0, False, False)
    small = rl.PixelObservation(Drawn(), size=(36, 36), grayscale=True)
    assert small.reset()[0].shape == (36, 36, 1)
    assert small.render().shape == (40, 60, 3)  # type: ignore[attr-defined]  # for videos


@pytest.mark.parametrize(("frame", "size", "expected"), [
    ([[10, 20, 30, 40], [30, 40, 50, 60]], (1, 2), [[25, 45]]),
    # Each of two pixels covers one and a half of three: (0 + 90 / 2) / 1.5 = 30, (90 / 2 + 60) / 1.5 = 70.
    ([[0, 90, 60]], (1, 2), [[30, 70]]),
    ([[1, 2, 2]], (1, 1), [[2]]),  # 5 / 3
    ([[0, 90]], (2, 4), [[0, 0, 90, 90], [0, 0, 90, 90]]),
])  # fmt: skip
def test_a_pixel_is_the_mean_of_its_area(frame: Any, size: Any, expected: Any) -> None:
    assert rl.PixelObservation(fixed(frame), size=size).reset()[0][..., 0].tolist() == expected


def test_gray_values() -> None:
    env = rl.PixelObservation(fixed([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]]), grayscale=True)
    assert env.observation_space.shape == (1, 4, 1)
    assert env.reset()[0][..., 0].tolist() == [[54, 182, 18, 255]]  # 255 times 0.2125, 0.7154, 0.0721, 1


def test_frames_beside_the_state() -> None:
    env = rl.PixelObservation(Drawn(), render_only=False, size=(36, 48))
    obs, _ = env.reset(seed=7)
    assert (sorted(obs), obs["state"].tolist(), obs["pixels"].shape) == (["pixels", "state"], [7, 0], (36, 48, 3))
    assert env.observation_space.contains(obs)
    env = rl.PixelObservation(OfDict(Drawn(), "arm"), render_only=False)
    obs, *_ = env.reset(seed=7)
    assert sorted(obs) == ["arm", "pixels"]
    assert env.observation_space.contains(obs)
    assert env.step(1)[0]["pixels"][0, 0].tolist() == [1, 0, 0]


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_frames_in_vector_envs(backend: Any) -> None:
    wrapper = partial(rl.PixelObservation, grayscale=True, size=(36, 36), render_only=False)
    envs = rl.make_vec(partial(Drawn, length=3), 2, backend=backend, seed=1, wrappers=[wrapper])
    with closing(envs):
        algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=(8,)))
        buffer = rl.RolloutBuffer(4, 2, envs.single_observation_space, envs.single_action_space)
        collector = rl.Collector(algorithm.policy, envs, buffer)
        collector.collect(num_steps=8)
        rollout = collector.rollout()
        assert rollout.obs["pixels"].shape == (4, 2, 36, 36, 1)
        assert rollout.obs["state"][:, 0, 1].tolist() == [0, 1, 2, 0]
        assert rollout.next_obs["state"][:, 0, 1].tolist() == [1, 2, 3, 1]
        assert algorithm.update(rollout, batch_size=8, repeat=1).num_gradient_steps == 1


@pytest.mark.parametrize(
    ("frame", "found"),
    [(np.zeros((4, 4, 3)), "float64"), (np.zeros((4, 4), np.uint8), "uint8"), ([], "list"), ("text", "str")],
)
def test_another_thing_than_a_frame_is_an_error(frame: Any, found: str) -> None:
    text = rf"^PixelObservation.env.render\(\): expected a frame uint8 \(height, width, 3\), got .*{found}"
    with pytest.raises(SpaceError, match=text):
        rl.PixelObservation(Drawn(frame))


def test_a_part_of_the_same_name_is_an_error() -> None:
    env = OfDict(Drawn(), "pixels")
    with pytest.raises(ParamsError, match=r"^PixelObservation.env.observation_space: must have no part 'pixels' of"):
        rl.PixelObservation(env, render_only=False)
    rl.PixelObservation(env)  # replaces it


# Masks


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


def test_masks_from_infos() -> None:
    env = rl.ActionMask(InInfo())
    obs, _ = env.reset(seed=1)
    assert (obs["action_mask"].tolist(), obs["observation"].tolist()) == ([1, 0, 0], [1, 0])
    assert env.observation_space.contains(obs)
    obs, *_ = env.step(0)
    assert obs["action_mask"].tolist() == [0, 1, 0]
    assert env.observation_space.contains(obs)


def test_masks_from_a_method_behind_other_wrappers() -> None:
    env = rl.ActionMask(OfDict(ByMethod(), "a"))
    obs, _ = env.reset(seed=1)
    assert (sorted(obs), obs["action_mask"].tolist()) == (["a", "action_mask"], [1, 0])
    assert env.observation_space.contains(obs)


@pytest.mark.parametrize("mask", [[True, False, True], [1, 0, 1], np.array([1.0, 0.0, 1.0])])
def test_every_kind_of_flags(mask: Any) -> None:
    assert rl.ActionMask(InInfo(mask)).reset()[0]["action_mask"].tolist() == [1, 0, 1]


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_masks_in_vector_envs(backend: Any) -> None:
    envs = rl.make_vec(InInfo, 2, backend=backend, wrappers=[rl.ActionMask])
    with closing(envs):
        policy = rl.ActorCritic.for_envs(envs, hidden_sizes=(8,))
        buffer = rl.RolloutBuffer(3, 2, envs.single_observation_space, envs.single_action_space)
        one = rl.Collector(policy, envs, buffer)
        one.collect(num_steps=6)
        assert one.rollout().action.tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("mask", [[1, 0], [[1, 0, 1]], 1, ["a", "b", "c"]])
def test_a_mask_of_another_shape_is_an_error(mask: Any) -> None:
    with pytest.raises(SpaceError, match=r"^ActionMask: expected flags of shape \(3,\), got "):
        rl.ActionMask(InInfo(mask)).reset()


def test_several_choices_have_one_mask() -> None:
    space: Any = rl.ActionMask(CountingEnv(action_space=spaces.MultiDiscrete([2, 3]))).observation_space
    assert space["action_mask"] == spaces.MultiBinary(5)
