"""Arguments of a policy's constructors, and what follows from them: envs to spaces, options checked, bounds."""

import inspect
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.names import check_arguments
from rltrainer.spaces import Space


def spaces_of(policy_class: Any, envs: Any) -> tuple[Space, Space]:
    """Return the spaces of one of some envs; a `ParamsError` says how to make envs where there are none."""
    observation_space = getattr(envs, "single_observation_space", None)
    action_space = getattr(envs, "single_action_space", None)
    if isinstance(observation_space, gym.Space) and isinstance(action_space, gym.Space):
        return observation_space, action_space
    hint = "Make one with rl.make_vec(env_id, num_envs=1)."
    if isinstance(envs, str):
        hint = f"Make one with rl.make_vec({envs!r}, num_envs=1)."
    elif isinstance(envs, gym.Env):
        hint = "It is a single env: make several with rl.make_vec(env_id_or_factory, num_envs=1)."
    owner = f"{policy_class.__name__}.for_envs"
    raise ParamsError(field_error_text(owner, "envs", "must be a gymnasium VectorEnv", envs, hint))


def check_options(policy_class: Any, method: str, args: tuple[Any, ...], options: Any) -> None:
    """Raise a `ParamsError` unless a class can be made with these arguments."""
    owner = f"{policy_class.__name__}.{method}"
    if inspect.isabstract(policy_class):
        name = policy_class.__name__
        raise ParamsError(f"{owner}: {name} is abstract. Build one of its subclasses: ActorCritic, ...")
    check_arguments(owner, policy_class, args, options, "option")


def finite_bounds(space: Space) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return the least and the greatest float32 numbers within a Box; None where there is nothing to clip to."""
    if not isinstance(space, spaces.Box) or not np.isfinite([space.low, space.high]).any():
        return None, None
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    # The float32 nearest to a bound of another format may lie beyond it.
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
    return torch.from_numpy(low), torch.from_numpy(high)
