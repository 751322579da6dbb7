"""Uniformly random actions, for warm-up."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.errors import SpaceError


def random_action(space: gym.Space[Any], num_envs: int, generator: torch.Generator) -> Tensor:
    """Draw one action per env [N, ...] from a generator, so that its state is part of a checkpoint.

    A Box without finite bounds is sampled from a standard normal.

    Raises:
        SpaceError: the space is neither Box, Discrete, MultiDiscrete nor MultiBinary.
    """
    device = generator.device
    if isinstance(space, spaces.Discrete):
        # Not from `start` on: the number after the last choice may be none of int64.
        return torch.randint(int(space.n), (num_envs,), generator=generator, device=device) + int(space.start)
    if isinstance(space, spaces.Box):
        shape = (num_envs, *space.shape)
        if not space.is_bounded():
            return torch.randn(shape, generator=generator, device=device)
        low, high = (torch.from_numpy(bound.astype(np.float32)).to(device) for bound in (space.low, space.high))
        return low + torch.rand(shape, generator=generator, device=device) * (high - low)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        shape = (num_envs, *space.shape)
        sizes, start = (space.nvec, space.start) if isinstance(space, spaces.MultiDiscrete) else (2, 0)
        uniform = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        choice = (uniform * torch.as_tensor(sizes, device=device)).long()
        return choice + torch.as_tensor(np.asarray(start, np.int64), device=device)
    raise SpaceError(f"random actions need a Box, Discrete, MultiDiscrete or MultiBinary action space; got {space}")
