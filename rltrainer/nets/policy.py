"""The policy: what chooses actions, and the one object that algorithms and collectors share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self, TypeGuard

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.errors import SpaceError, field_error_text
from rltrainer.nets.exploration import Exploration
from rltrainer.nets.normalizer import ObsNormalizer
from rltrainer.tree import Tree


def no_progress() -> float:
    """Return 0: the progress of a policy that no trainer drives."""
    return 0.0


class Policy(nn.Module, ABC):
    """Chooses actions for observations. Holds networks and normalisers; owns no generator.

    A subclass implements `choose`. Move a policy with `.to(device)` before its algorithm is built.

    Args:
        observation_space: the space of one observation.
        action_space: the space of one action.
        normalize_obs: standardise float observations by running statistics that are saved with the policy.
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], *, normalize_obs: bool = False
    ) -> None:
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_normalizer = ObsNormalizer(observation_space) if normalize_obs else None
        self.exploration: Exploration | None = None
        self.progress: Callable[[], float] = no_progress

    @classmethod
    def for_spaces(cls, observation_space: gym.Space[Any], action_space: gym.Space[Any], **options: Any) -> Self:
        """Build the policy for an observation space and an action space; `options` go to the constructor."""
        return cls(observation_space, action_space, **options)

    @classmethod
    def for_envs(cls, envs: gym.vector.VectorEnv[Any, Any, Any], **options: Any) -> Self:
        """Build the policy for the spaces of a vector env; `options` go to the constructor."""
        return cls(envs.single_observation_space, envs.single_action_space, **options)

    @abstractmethod
    def choose(self, obs: Tree, explore: bool, generator: torch.Generator | None) -> Tensor:
        """Choose actions [N, ...] for normalised observations; `explore` samples where the policy is stochastic."""

    def act(self, obs: Tree, *, explore: bool = False, generator: torch.Generator | None = None) -> Tensor:
        """Choose actions for raw observations.

        Args:
            obs: tree [N, ...] on the policy's device.
            explore: sample, or add the exploration that the algorithm set; False chooses greedily.
            generator: source of randomness; None uses torch's global one.

        Returns:
            actions [N, ...] in the env's scale.
        """
        if torch.is_grad_enabled():  # a collector has switched gradients off once for all its steps
            with torch.no_grad():
                return self.act(obs, explore=explore, generator=generator)
        action = self.choose(self.normalize(obs), explore, generator)
        if explore and self.exploration is not None:
            action = self.exploration(action, self.action_space, self.progress(), generator)
        return action

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle without the way back to a trainer, which holds envs, buffers and callbacks."""
        return self.__dict__ | {"progress": no_progress}

    def normalize(self, obs: Tree) -> Tree:
        """Standardise observations, if this policy does so."""
        return obs if self.obs_normalizer is None else self.obs_normalizer(obs)

    def scale(self, action: Tensor) -> Tensor:
        """Map actions from the scale of the networks to the env's."""
        return action

    def unscale(self, action: Tensor) -> Tensor:
        """Map actions from the env's scale to that of the networks; the inverse of `scale`."""
        return action

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device


class UnitBoxPolicy(Policy):
    """Parent of policies whose networks act in (-1, 1)^A, the shape of squashed actions.

    Raises:
        SpaceError: the action space is not a bounded Box of one axis with low < high.
    """

    action_low: Tensor
    action_high: Tensor

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], *, normalize_obs: bool = False
    ) -> None:
        super().__init__(observation_space, action_space, normalize_obs=normalize_obs)
        if not _is_unit_box_like(action_space):
            raise SpaceError(
                field_error_text(
                    type(self).__name__,
                    "action_space",
                    "must be a bounded Box of one axis with low < high",
                    action_space,
                    "Give the env such a Box with gymnasium.wrappers.TransformAction, or use another policy.",
                )
            )
        self.register_buffer("action_low", torch.from_numpy(action_space.low.astype(np.float32)))
        self.register_buffer("action_high", torch.from_numpy(action_space.high.astype(np.float32)))

    def scale(self, action: Tensor) -> Tensor:
        """Map (-1, 1) to the bounds of the action space."""
        return torch.lerp(self.action_low, self.action_high, ((action + 1) * 0.5).to(self.action_low.dtype))

    def unscale(self, action: Tensor) -> Tensor:
        """Map the bounds of the action space to (-1, 1)."""
        return 2 * (action - self.action_low) / (self.action_high - self.action_low) - 1


def _is_unit_box_like(space: gym.Space[Any]) -> TypeGuard[spaces.Box]:
    """Whether an affine map takes (-1, 1)^A to the space and back."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
        return False
    return bool((space.low < space.high).all())
