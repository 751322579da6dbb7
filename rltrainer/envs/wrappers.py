"""Wrappers of single envs, for `make_vec(..., wrappers=...)`, and the closed list of wrappers that data may name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers

from rltrainer.envs.atari import AtariWrapper
from rltrainer.envs.checks import describe
from rltrainer.errors import EnvError, ParamsError, SpaceError
from rltrainer.spaces import ACTION_MASK, Array, num_choices
from rltrainer.validation.field_rules import Flag, Rule, checked, is_int
from rltrainer.validation.suggestions import did_you_mean

Env = gym.Env[Any, Any]


def _is_size(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(is_int(n) and n > 0 for n in value)


FrameSize = Annotated[tuple[int, int], Rule("(height, width), two positive integers", _is_size)]

# Shares of red, green and blue in a gray value, as in gymnasium's `GrayscaleObservation`.
LUMINANCE = np.array([[0.2125], [0.7154], [0.0721]], np.float32)
PIXELS, STATE = "pixels", "state"


class _Observing(gym.Wrapper[Any, Any, Any, Any]):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env and observe it."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._observe(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env and observe it."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._observe(obs, info), reward, terminated, truncated, info

    def _observe(self, obs: Any, info: dict[str, Any]) -> Any:
        raise NotImplementedError


class ActionMask(_Observing):
    """Puts the mask of allowed actions into the observation, as the leaf `action_mask` of a Dict.

    The mask is `info["action_mask"]` after each reset and step, or else the result of the env's method
    `action_masks()`: one flag for each choice, of a MultiDiscrete or MultiBinary action one choice after the other.
    An observation that is no Dict becomes its part `observation`.

        envs = rl.make_vec("MyEnv-v0", num_envs=8, wrappers=[rl.ActionMask])

    Args:
        env: an env with Discrete, MultiDiscrete or MultiBinary actions.

    Raises:
        SpaceError: its actions are others, or a mask has another shape.
        EnvError: it has neither `info["action_mask"]` nor `action_masks()`.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        sizes, space = num_choices(env.action_space), env.observation_space
        if sizes is None:
            rule = "must be Discrete, MultiDiscrete or MultiBinary"
            raise SpaceError.about("ActionMask", "env.action_space", rule, env.action_space)
        self._shape, self._is_dict = (sum(sizes),), isinstance(space, spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        self.observation_space = spaces.Dict({**parts, ACTION_MASK: spaces.MultiBinary(sum(sizes))})

    def _observe(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        if ACTION_MASK in info:
            mask = np.asarray(info[ACTION_MASK])
        elif self.has_wrapper_attr("action_masks"):
            mask = np.asarray(self.get_wrapper_attr("action_masks")())
        else:
            raise EnvError(f'ActionMask: {self.env} has neither info["{ACTION_MASK}"] nor a method action_masks()')
        if mask.shape != self._shape or mask.dtype.kind not in "biuf":
            raise SpaceError(f"ActionMask: expected flags of shape {self._shape}, got {describe(mask)}")
        return {**(obs if self._is_dict else {"observation": obs}), ACTION_MASK: (mask != 0).astype(np.int8)}


class PixelObservation(_Observing):
    """Observes rendered frames: uint8 [H, W, 3], or [H, W, 1] in gray.

        wrapper = functools.partial(rl.PixelObservation, size=(84, 84), grayscale=True)
        envs = rl.make_vec("CartPole-v1", num_envs=8, render_mode="rgb_array", wrappers=[wrapper])

    `render` still returns the frame as the env drew it. Names are as in gymnasium's `AddRenderObservation`, which
    neither resizes nor turns gray; its wrappers that do need OpenCV and take no Dict.

    Args:
        env: an env that was made with `render_mode="rgb_array"`.
        size: height and width of the observed frame; None keeps the rendered size.
        grayscale: observe gray values instead of colours.
        render_only: False observes a Dict: the frame is its part `pixels`, beside the parts of the env's own Dict
            observation, or beside its observation as the part `state`.

    Raises:
        ParamsError: the env renders nothing, has a part `pixels` already, or an argument breaks its rule.
        SpaceError: what it renders is no frame.
    """

    def __init__(
        self, env: Env, *, size: tuple[int, int] | None = None, grayscale: bool = False, render_only: bool = True
    ) -> None:
        super().__init__(env)
        name, space = type(self).__name__, env.observation_space
        size = checked(name, "size", size, FrameSize | None)
        self._grayscale = checked(name, "grayscale", grayscale, Flag)
        self._render_only = checked(name, "render_only", render_only, Flag)
        if env.render_mode in (None, "human"):
            hint = 'Write make_vec(..., render_mode="rgb_array"), or pass it on in the factory.'
            raise ParamsError.about(name, "env", 'must be made with render_mode="rgb_array"', env.render_mode, hint)
        env.reset()  # most envs render nothing before; every episode starts with a reset of its own
        height, width = _checked_frame(env.render()).shape[:2]
        size = size or (height, width)
        self._rows, self._columns = _shares(height, size[0]), _shares(width, size[1])
        self._is_resized, self._is_dict = tuple(size) != (height, width), isinstance(space, spaces.Dict)
        frames = spaces.Box(0, 255, (*size, 1 if grayscale else 3), np.uint8)
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {STATE: space}
        if not render_only and PIXELS in parts:
            raise ParamsError.about(name, "env.observation_space", f"must have no part {PIXELS!r} of its own", space)
        self.observation_space = frames if render_only else spaces.Dict({**parts, PIXELS: frames})

    def _observe(self, obs: Any, info: dict[str, Any]) -> Any:
        frame = _checked_frame(self.env.render())
        if self._grayscale or self._is_resized:
            shades = frame.astype(np.float32)
            if self._grayscale:
                shades = shades @ LUMINANCE
            if self._is_resized:  # rows first, then columns: two products of matrices
                of_rows = self._rows @ shades.reshape(len(shades), -1)
                shades = self._columns @ of_rows.reshape(-1, *shades.shape[1:])
            frame = shades.round().astype(np.uint8)
        return frame if self._render_only else {**(obs if self._is_dict else {STATE: obs}), PIXELS: frame}


def _checked_frame(frame: Any) -> Array:
    if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3:
        return frame
    raise SpaceError(f"PixelObservation.env.render(): expected a frame uint8 (height, width, 3), got {describe(frame)}")


def _shares(length: int, new_length: int) -> Array:
    """Return the share of each old pixel in a new one, the mean of the area that it covers [new_length, length]."""
    # A new pixel may start and end within old ones, and then takes a part of them: each row sums to 1.
    edges = np.linspace(0, length, new_length + 1)[:, None]
    pixels = np.arange(length)
    covered = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    return (covered.clip(0) * new_length / length).astype(np.float32)


WRAPPERS: dict[str, Callable[..., Env]] = {
    cls.__name__: cls
    for cls in (
        ActionMask, AtariWrapper, PixelObservation, wrappers.AtariPreprocessing, wrappers.ClipAction,
        wrappers.ClipReward, wrappers.DelayObservation, wrappers.DtypeObservation, wrappers.FilterObservation,
        wrappers.FlattenObservation, wrappers.FrameStackObservation, wrappers.GrayscaleObservation,
        wrappers.MaxAndSkipObservation, wrappers.RescaleAction, wrappers.RescaleObservation,
        wrappers.ReshapeObservation, wrappers.ResizeObservation, wrappers.StickyAction, wrappers.TimeAwareObservation,
        wrappers.TimeLimit,
    )
}  # fmt: skip
"""Our wrappers, and gymnasium's wrappers with data as arguments."""

NAME = "wrapper"
"""The key of a wrapper's name, beside its arguments."""


def wrappers_named(owner: str, field: str, data: Sequence[str | Mapping[str, Any]]) -> list[Callable[[Env], Env]]:
    """Return the wrappers that data names, innermost first; errors name the data as `field` of `owner`."""
    # Each is a name, or a name with arguments: `{"wrapper": "TimeLimit", "max_episode_steps": 9}`.
    return [_wrapper(owner, field, {NAME: each} if isinstance(each, str) else each) for each in data]


def _wrapper(owner: str, field: str, data: Any) -> Callable[[Env], Env]:
    name = data.get(NAME) if isinstance(data, Mapping) else data
    if not isinstance(name, str) or name not in WRAPPERS:
        hint = did_you_mean(name, WRAPPERS).strip() if isinstance(name, str) else ""
        raise ParamsError.about(owner, field, f"must name one of {', '.join(WRAPPERS)}", name, hint)
    options = {key: value for key, value in data.items() if key != NAME}
    signature = inspect.signature(WRAPPERS[name])
    known = list(signature.parameters)[1:]
    for option in [option for option in options if option not in known]:
        hint = did_you_mean(str(option), known).strip()
        raise ParamsError.about(owner, field, f"{name} has no argument {option!r}", data, hint)
    try:
        signature.bind(None, **options)
    except TypeError as error:
        raise ParamsError.about(owner, field, f"{name}: {error}", data) from None
    return partial(WRAPPERS[name], **options)
