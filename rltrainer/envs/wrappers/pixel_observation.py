"""Rendered frames as observations."""

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rltrainer.envs.adapter.checks import describe
from rltrainer.errors import ParamsError, SpaceError, field_error_text
from rltrainer.validation.field_rules import Flag, Rule, checked, is_int
from rltrainer.validation.suggestions import explains_arguments

Array = np.ndarray[Any, Any]
FrameSize = Annotated[
    tuple[int, int],
    Rule(
        "(height, width), two positive integers",
        lambda v: isinstance(v, tuple | list) and len(v) == 2 and all(is_int(n) and n > 0 for n in v),
    ),
]

LUMINANCE = np.array([[0.2125], [0.7154], [0.0721]], np.float32)
"""Shares of red, green and blue in a gray value, those of gymnasium's `GrayscaleObservation`."""
PIXELS, STATE = "pixels", "state"


@explains_arguments
class PixelObservation(gym.Wrapper[Any, Any, Any, Any]):
    """Observes what the env renders: uint8 [H, W, 3], or [H, W, 1] in gray.

        wrapper = functools.partial(rl.PixelObservation, size=(84, 84), grayscale=True)
        envs = rl.make_vec("CartPole-v1", num_envs=8, render_mode="rgb_array", wrappers=[wrapper])

    `render` still returns the frame as the env drew it. Names are those of gymnasium's `AddRenderObservation`, which
    neither resizes nor turns gray; its wrappers that do need OpenCV and take no Dict.

    Args:
        env: an env that was made with `render_mode="rgb_array"`.
        size: height and width of the observed frame, each pixel the mean of the area that it covers; None keeps the
            rendered size.
        grayscale: observe gray values instead of colours.
        render_only: False observes a Dict: the frame is its part `pixels`, beside the parts of the env's own Dict
            observation, or beside the env's observation as the part `state`.

    Raises:
        ParamsError: the env renders nothing, has a part `pixels` already, or an argument breaks its rule.
        SpaceError: what it renders is no frame.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        size: tuple[int, int] | None = None,
        grayscale: bool = False,
        render_only: bool = True,
    ) -> None:
        super().__init__(env)
        name = type(self).__name__
        size = checked(name, "size", size, FrameSize | None)
        self._grayscale = checked(name, "grayscale", grayscale, Flag)
        self._render_only = checked(name, "render_only", render_only, Flag)
        if env.render_mode in (None, "human"):
            hint = 'Write make_vec(..., render_mode="rgb_array"), or pass it on in the factory.'
            rule = 'must be made with render_mode="rgb_array"'
            raise ParamsError(field_error_text(name, "env", rule, env.render_mode, hint))
        env.reset()  # most envs render nothing before; every episode begins with a reset of its own
        height, width = _checked_frame(env.render()).shape[:2]
        size = size or (height, width)
        self._rows, self._columns = _shares(height, size[0]), _shares(width, size[1])
        self._is_resized = tuple(size) != (height, width)
        frames = spaces.Box(0, 255, (*size, 1 if grayscale else 3), np.uint8)
        self.observation_space = frames if render_only else spaces.Dict({**self._parts(env, name), PIXELS: frames})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env and observe it."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._observe(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env and observe it."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._observe(obs), reward, terminated, truncated, info

    def _parts(self, env: gym.Env[Any, Any], name: str) -> dict[str, gym.Space[Any]]:
        """Return the parts of a Dict that stand beside the frame."""
        space = env.observation_space
        self._is_dict = isinstance(space, spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {STATE: space}
        if PIXELS in parts:
            rule = f"must have no part {PIXELS!r} of its own"
            raise ParamsError(field_error_text(name, "env.observation_space", rule, space))
        return parts

    def _observe(self, obs: Any) -> Any:
        frame = self._frame()
        if self._render_only:
            return frame
        return {**(obs if self._is_dict else {STATE: obs}), PIXELS: frame}

    def _frame(self) -> Array:
        frame = _checked_frame(self.env.render())
        if not self._grayscale and not self._is_resized:
            return frame
        shades = frame.astype(np.float32)
        if self._grayscale:
            shades = shades @ LUMINANCE
        if self._is_resized:
            of_rows = self._rows @ shades.reshape(len(shades), -1)
            shades = self._columns @ of_rows.reshape(-1, *shades.shape[1:])
        return shades.round().astype(np.uint8)


def _checked_frame(frame: Any) -> Array:
    if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3:
        return frame
    raise SpaceError(f"PixelObservation.env.render(): expected a frame uint8 (height, width, 3), got {describe(frame)}")


def _shares(length: int, new_length: int) -> Array:
    """Return the share of each old pixel in the mean that is a new one [new_length, length]."""
    edges = np.linspace(0, length, new_length + 1)[:, None]
    pixels = np.arange(length)
    covered = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    return (covered.clip(0) * new_length / length).astype(np.float32)
