"""Frames become observations: shrunk by areas, in gray, alone or beside the state."""

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
    """Return an env whose frames have these values in all colours."""
    shades = np.array(values, np.uint8)
    env = Drawn(np.repeat(shades[..., None], 3, -1))
    env.render = lambda: env.frame  # type: ignore[method-assign]  # draws nothing into it
    return env


def test_frames_as_they_are_rendered() -> None:
    env = rl.PixelObservation(Drawn())
    obs, _ = env.reset(seed=3)
    assert env.observation_space == spaces.Box(0, 255, (40, 60, 3), np.uint8)
    assert (obs.dtype, obs.shape, obs[0, 0].tolist()) == (np.uint8, (40, 60, 3), [0, 0, 0])
    obs, reward, terminated, truncated, _ = env.step(0)
    assert (obs[0, 0].tolist(), reward, terminated, truncated) == ([1, 0, 0], 1.0, False, False)


def test_a_pixel_is_the_mean_of_its_area() -> None:
    even = [[10, 20, 30, 40], [30, 40, 50, 60]]
    obs, _ = rl.PixelObservation(fixed(even), size=(1, 2)).reset()
    assert obs[..., 0].tolist() == [[25, 45]]
    # Each of two pixels covers one and a half of three: (0 + 90 / 2) / 1.5 = 30, (90 / 2 + 60) / 1.5 = 70.
    obs, _ = rl.PixelObservation(fixed([[0, 90, 60]]), size=(1, 2)).reset()
    assert obs[..., 0].tolist() == [[30, 70]]
    obs, _ = rl.PixelObservation(fixed([[1, 2, 2]]), size=(1, 1)).reset()
    assert obs[..., 0].tolist() == [[2]]  # 5 / 3
    obs, _ = rl.PixelObservation(fixed([[0, 90]]), size=(2, 4)).reset()
    assert obs[..., 0].tolist() == [[0, 0, 90, 90], [0, 0, 90, 90]]


def test_gray_values() -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]]], np.uint8)
    env = Drawn(colours)
    env.render = lambda: colours  # type: ignore[method-assign]  # draws nothing into it
    wrapped = rl.PixelObservation(env, grayscale=True)
    assert wrapped.observation_space.shape == (1, 4, 1)
    assert wrapped.reset()[0][..., 0].tolist() == [[54, 182, 18, 255]]  # 255 times 0.2125, 0.7154, 0.0721, 1


def test_what_is_rendered_stays_large() -> None:
    env = rl.PixelObservation(Drawn(), size=(36, 36), grayscale=True)
    assert env.reset()[0].shape == (36, 36, 1)
    assert env.render().shape == (40, 60, 3)  # type: ignore[attr-defined]  # for videos


def test_beside_the_state() -> None:
    env = rl.PixelObservation(Drawn(), render_only=False, size=(36, 48))
    obs, _ = env.reset(seed=7)
    assert sorted(obs) == ["pixels", "state"]
    assert obs["state"].tolist() == [7, 0]
    assert obs["pixels"].shape == (36, 48, 3)
    assert env.observation_space.contains(obs)


def test_beside_the_parts_of_a_dict() -> None:
    env = rl.PixelObservation(OfDict(Drawn(), "arm"), render_only=False)
    obs, *_ = env.reset(seed=7)
    assert sorted(obs) == ["arm", "pixels"]
    assert env.observation_space.contains(obs)
    assert env.step(1)[0]["pixels"][0, 0].tolist() == [1, 0, 0]


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_in_vector_envs(backend: Any) -> None:
    wrapper = partial(rl.PixelObservation, grayscale=True, size=(36, 36), render_only=False)
    envs = rl.make_vec(partial(Drawn, length=3), 2, backend=backend, seed=1, wrappers=[wrapper])
    try:
        algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=(8,)))
        buffer = rl.RolloutBuffer(4, 2, envs.single_observation_space, envs.single_action_space)
        collector = rl.Collector(algorithm.policy, envs, buffer)
        collector.collect(num_steps=8)
        rollout = collector.rollout()
        assert rollout.obs["pixels"].shape == (4, 2, 36, 36, 1)
        assert rollout.obs["state"][:, 0, 1].tolist() == [0, 1, 2, 0]
        assert rollout.next_obs["state"][:, 0, 1].tolist() == [1, 2, 3, 1]
        assert algorithm.update(rollout, batch_size=8, repeat=1).num_gradient_steps == 1
    finally:
        envs.close()


def test_episodes_are_those_of_the_env_alone() -> None:
    alone: Any = rl.make_vec("CartPole-v1", 2, backend="sync", seed=5)
    wrapper = partial(rl.PixelObservation, size=(84, 84), render_only=False)
    seen: Any = rl.make_vec("CartPole-v1", 2, seed=5, render_mode="rgb_array", wrappers=[wrapper])
    assert np.array_equal(alone.reset()[0], seen.reset()[0]["state"])
    for _ in range(5):
        (here, *_), (there, *_) = (envs.step(np.array([1, 0])) for envs in (alone, seen))
        assert np.array_equal(here, there["state"])
        assert there["pixels"].min() < there["pixels"].max()
    for envs in (alone, seen):
        envs.close()


@pytest.mark.parametrize("render_mode", [None, "human"])
def test_an_env_that_renders_no_frames_is_an_error(render_mode: Any) -> None:
    kind = type(render_mode).__name__
    text = (
        rf"^PixelObservation.env: must be made with render_mode=\"rgb_array\"; got {render_mode!r} \({kind}\). Write "
    )
    with pytest.raises(ParamsError, match=text):
        rl.make_vec(partial(Drawn, render_mode=render_mode), 1, wrappers=[rl.PixelObservation])


@pytest.mark.parametrize(
    ("frame", "found"),
    [(np.zeros((4, 4, 3)), "float64"), (np.zeros((4, 4), np.uint8), "uint8"), ([], "list"), ("text", "str")],
)
def test_what_is_no_frame_is_an_error(frame: Any, found: str) -> None:
    text = rf"^PixelObservation.env.render\(\): expected a frame uint8 \(height, width, 3\), got .*{found}"
    with pytest.raises(SpaceError, match=text):
        rl.PixelObservation(Drawn(frame))


def test_a_part_of_the_same_name_is_an_error() -> None:
    env = OfDict(Drawn(), "pixels")
    with pytest.raises(ParamsError, match=r"^PixelObservation.env.observation_space: must have no part 'pixels' of"):
        rl.PixelObservation(env, render_only=False)
    rl.PixelObservation(env)  # replaces it


@pytest.mark.parametrize("size", [-1, 0, np.inf, np.nan, "", True, [], (84,), (84, 0), (84, 84, 1), (84.0, 84)])
def test_sizes_are_checked(size: Any) -> None:
    rule = r"must be \(height, width\), two positive integers or None"
    with pytest.raises(ParamsError, match=rf"^PixelObservation.size: {rule}; got "):
        rl.PixelObservation(Drawn(), size=size)


@pytest.mark.parametrize("field", ["grayscale", "render_only"])
@pytest.mark.parametrize("value", [-1, 0, np.inf, np.nan, "", None, []])
def test_flags_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ParamsError, match=rf"^PixelObservation.{field}: must be True or False; got "):
        rl.PixelObservation(Drawn(), **{field: value})
