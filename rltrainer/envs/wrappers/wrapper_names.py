"""Wrappers by their names: what data may wrap envs in. The list is closed, and nothing is imported."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium import wrappers

from rltrainer.envs.wrappers.atari_wrapper import AtariWrapper
from rltrainer.envs.wrappers.mask_wrapper import ActionMask
from rltrainer.envs.wrappers.pixel_observation import PixelObservation
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.validation.suggestions import did_you_mean

Env = gym.Env[Any, Any]

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
"""Ours, and those of gymnasium's whose arguments are data."""

NAME = "wrapper"
"""The key of a wrapper's name, beside its arguments."""


def wrappers_named(owner: str, field: str, data: Sequence[str | Mapping[str, Any]]) -> list[Callable[[Env], Env]]:
    """Return what wraps an env, first one innermost.

    Args:
        owner, field: whose data it is, for errors.
        data: names, or dicts of a name as `wrapper` and the wrapper's arguments: `{"wrapper": "TimeLimit",
            "max_episode_steps": 100}`.

    Raises:
        ParamsError: a name is none of `WRAPPERS`, or its arguments are not the wrapper's.
    """
    return [_wrapper(owner, field, {NAME: each} if isinstance(each, str) else each) for each in data]


def _wrapper(owner: str, field: str, data: Any) -> Callable[[Env], Env]:
    name = data.get(NAME) if isinstance(data, Mapping) else data
    if not isinstance(name, str) or name not in WRAPPERS:
        hint = did_you_mean(name, WRAPPERS).strip() if isinstance(name, str) else ""
        raise ParamsError(field_error_text(owner, field, f"must name one of {', '.join(WRAPPERS)}", name, hint))
    options = {key: value for key, value in data.items() if key != NAME}
    signature = inspect.signature(WRAPPERS[name])
    for option in options:
        if option not in list(signature.parameters)[1:]:
            hint = did_you_mean(str(option), list(signature.parameters)[1:]).strip()
            raise ParamsError(field_error_text(owner, field, f"{name} has no argument {option!r}", data, hint))
    try:
        signature.bind(None, **options)
    except TypeError as error:
        raise ParamsError(field_error_text(owner, field, f"{name}: {error}", data)) from None
    return partial(WRAPPERS[name], **options)
