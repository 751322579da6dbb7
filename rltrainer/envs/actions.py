"""What the env receives for a policy's action."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.errors import SpaceError
from rltrainer.spaces import LEAF_SPACES


class ActionConverter:
    """Clips to the bounds of a Box, casts to the dtype of the action space, moves to where the env is.

    Args:
        space: the single action space.
        env_device: the device of an env that takes tensors; None if it takes NumPy arrays.

    Attributes:
        changes_nothing: whether the env receives the policy's choices as they are.

    Raises:
        SpaceError: the space is a Dict, Tuple or something stranger.
    """

    def __init__(self, space: gym.Space[Any], env_device: torch.device | None = None) -> None:
        if not isinstance(space, LEAF_SPACES):
            names = ", ".join(cls.__name__ for cls in LEAF_SPACES)
            raise SpaceError(f"unsupported action space {space}: must be {names}")
        self._env_device = env_device
        self._dtype = np.dtype(space.dtype)
        self._torch_dtype = torch.from_numpy(np.empty(0, self._dtype)).dtype
        self._is_bounded = False
        self.changes_nothing = env_device is None and self._dtype == np.int64
        if isinstance(space, gym.spaces.Box) and np.isfinite([space.low, space.high]).any():
            self._is_bounded = True
            self._low, self._high = space.low, space.high
            self._low_tensor = torch.from_numpy(self._low).to(env_device)
            self._high_tensor = torch.from_numpy(self._high).to(env_device)

    def __call__(self, action: Tensor) -> Any:
        """Convert actions [N, ...]; the result shares the action's memory where nothing has to change."""
        if self._env_device is not None:
            action = action.detach().to(self._env_device, self._torch_dtype)
            return action.clamp(self._low_tensor, self._high_tensor) if self._is_bounded else action
        array: np.ndarray[Any, Any] = action.numpy() if action.is_cpu else action.cpu().numpy()
        if self._is_bounded:
            # Not into memory of our own: envs keep the last action they were given.
            array = np.minimum(np.maximum(array, self._low), self._high)
        return array if array.dtype == self._dtype else array.astype(self._dtype)
