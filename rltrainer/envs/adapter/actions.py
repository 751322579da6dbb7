"""Actions of a policy, as the env receives them."""

from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.envs.checks import describe
from rltrainer.errors import NonFiniteError, SpaceError
from rltrainer.spaces import LEAF_SPACES, leaf_shape, stored_dtype


def lent(env_action: Any) -> Any:
    """Return a copy of actions, for envs that may change them in place: the actions are stored after the step."""
    return env_action.copy() if isinstance(env_action, np.ndarray) else env_action.clone()


class ActionConverter:
    """Clips to the bounds of a Box, casts to the dtype of the action space, moves to the env's device.

    `env_device` is None if the env takes NumPy arrays. A space that `LEAF_SPACES` lacks is a `SpaceError`.
    """

    def __init__(self, space: gym.Space[Any], num_envs: int, env_device: torch.device | None = None) -> None:
        if not isinstance(space, LEAF_SPACES):
            names = ", ".join(cls.__name__ for cls in LEAF_SPACES)
            raise SpaceError(f"unsupported action space {space}: must be {names}")
        self._space, self._shape = space, (num_envs, *leaf_shape(space))
        self._env_device = env_device
        self._dtype = np.dtype(space.dtype)
        self._torch_dtype = torch.from_numpy(np.empty(0, self._dtype)).dtype
        # Whether a policy's sample and the env's action may be different floats; a rollout keeps the sample. Integers
        # are stored as the env receives them.
        self.clips_samples = stored_dtype(space).is_floating_point
        self._rounds = isinstance(space, gym.spaces.Box) and not self.clips_samples
        self._is_bounded = isinstance(space, gym.spaces.Box) and bool(np.isfinite([space.low, space.high]).any())
        if isinstance(space, gym.spaces.Box):
            self._low, self._high = space.low, space.high
            if self._rounds:
                self._float_bounds = _within(space.low, -1), _within(space.high, 1)
            self._bounds = [torch.from_numpy(bound).to(env_device) for bound in (space.low, space.high)]

    def __call__(self, action: Tensor) -> Any:
        """Convert actions [N, ...]; the result shares the action's memory where nothing has to change."""
        # A policy's mistakes are found here, where they have its name: in the env, or in a buffer, they would not.
        if not isinstance(action, Tensor) or action.shape != self._shape:
            self._raise(action)
        if action.dtype is not self._torch_dtype:
            self._check_dtype(action)
        if self._env_device is not None:
            action = action.detach().to(self._env_device, self._torch_dtype)
            return action.clamp(*self._bounds) if self._is_bounded else action
        array: np.ndarray[Any, Any] = action.numpy() if action.is_cpu else action.cpu().numpy()
        if self._is_bounded:
            # Not into memory of our own: envs keep the last action they were given.
            low, high = self._float_bounds if self._rounds and array.dtype.kind == "f" else (self._low, self._high)
            array = np.minimum(np.maximum(array, low), high)
        return array if array.dtype == self._dtype else array.astype(self._dtype)

    def _check_dtype(self, action: Tensor) -> None:
        is_choice = not isinstance(self._space, gym.spaces.Box)
        if action.is_complex() or (is_choice and action.is_floating_point()):
            self._raise(action)
        if is_choice and action.dtype.itemsize > self._dtype.itemsize:
            chosen = action.cpu().numpy()
            if (differs := chosen.astype(self._dtype) != chosen).any():
                found = f"{chosen[differs][0]} ({chosen.dtype})"
                raise SpaceError(f"the policy's actions: must lie in {self._space}; got {found}")
        if self._rounds and not bool(torch.isfinite(action).all()):
            env = int((~torch.isfinite(action)).nonzero()[0, 0])
            raise NonFiniteError(f"env {env}: the policy chose {action[env].tolist()!r}; actions must be finite")

    def _raise(self, action: Any) -> NoReturn:
        expected = f"{str(stored_dtype(self._space)).removeprefix('torch.')} {self._shape}"
        found = f"a tensor {describe(action)}" if isinstance(action, Tensor) else describe(action)
        raise SpaceError(f"the policy's actions: expected a tensor {expected}, got {found}")


def _within(bound: np.ndarray[Any, Any], side: int) -> np.ndarray[Any, Any]:
    """Return a bound of integers as floats within it: 2^63 is a float, and 2^63 - 1 is none."""
    floats = bound.astype(np.float64)
    beyond = np.array([side * int(f) > side * int(b) for f, b in zip(floats.flat, bound.flat, strict=True)], np.bool_)
    return np.where(beyond.reshape(bound.shape), np.nextafter(floats, 0.0), floats)
