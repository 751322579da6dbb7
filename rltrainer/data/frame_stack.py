"""Stacked frames that are stored one by one: a stack is the newest frame and those of the rows before it."""

import dataclasses
from typing import Any

import gymnasium as gym
from torch import Tensor

from rltrainer.data.incoming_cells import to_array
from rltrainer.errors import ParamsError, ReplayBufferError, SpaceError, field_error_text
from rltrainer.types import Rollout
from rltrainer.validation.field_rules import PositiveInt, checked


class FrameStack:
    """Takes stacks apart, as gymnasium's `FrameStackObservation` makes them: the oldest frame first.

    Args:
        owner: the buffer's class, for errors.
        space: of the stacks.
        num_frames: k, how many frames a stack has.

    Attributes:
        space: of a single frame.

    Raises:
        ParamsError: `num_frames` is no positive integer.
        SpaceError: the space is no Box of that many frames.
    """

    def __init__(self, owner: str, space: gym.Space[Any], num_frames: int) -> None:
        self.num_frames = checked(owner, "frame_stack", num_frames, PositiveInt)
        if not isinstance(space, gym.spaces.Box) or space.shape[:1] != (num_frames,):
            rule = f"must be a Box with {num_frames} frames along its first axis"
            raise SpaceError(field_error_text(owner, "observation_space", rule, space))
        self._name, self._shape = f"{owner}.obs", space.shape
        self.space = gym.spaces.Box(space.low[-1], space.high[-1], space.shape[1:], space.dtype.type)

    def newest(self, obs: Any, num_axes: int = 1) -> Any:
        """Return the newest frame of each stack, an array or tensor [*axes, k, ...].

        Raises:
            ReplayBufferError: these are no such stacks.
        """
        obs = obs if isinstance(obs, Tensor) else to_array(obs)
        if tuple(obs.shape[num_axes:]) != self._shape:
            text = f"expected stacks of shape {self._shape}, got {tuple(obs.shape)}"
            raise ReplayBufferError(f"{self._name}: {text}")
        return obs[(slice(None),) * num_axes + (-1,)]

    def newest_of(self, rollout: Rollout) -> Rollout:
        """Return a rollout of single frames."""
        last, final = self.newest(rollout.last_obs), self.newest(rollout.final_obs)
        return dataclasses.replace(rollout, obs=self.newest(rollout.obs, 2), last_obs=last, final_obs=final)


def require_cells_per_env(owner: str, capacity: Any, num_envs: int, num_frames: int | None) -> int:
    """Return how many transitions each env keeps; a `ParamsError` unless that is one, and a stack of frames."""
    capacity = checked(owner, "capacity", capacity, PositiveInt)
    least = num_envs * (num_frames or 1)
    if capacity < least:
        text = f"num_envs={num_envs}" if num_frames is None else f"num_envs={num_envs} times frame_stack={num_frames}"
        raise ParamsError(field_error_text(owner, "capacity", f"must be at least {text}", capacity))
    return int(-(-capacity // num_envs))
