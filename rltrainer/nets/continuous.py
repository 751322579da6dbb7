"""Policies of off-policy continuous control: an actor in (-1, 1)^A and an ensemble of action-value critics."""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.field_rules import PositiveInt, Sizes, checked
from rltrainer.nets.chain import Chain
from rltrainer.nets.critic import Critic
from rltrainer.nets.distributions import DiagonalGaussian, SquashedGaussian
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.heads import GaussianHead, SquashedGaussianHead, ValueHead
from rltrainer.nets.mlp import MLP, Activation
from rltrainer.nets.policy import UnitBoxPolicy
from rltrainer.tree import Tree


class ContinuousActorCritic(UnitBoxPolicy):
    """Actor, and critic ensemble with the same hidden layers; a subclass adds the actor's head.

    Args:
        observation_space: the space of one observation.
        action_space: a bounded Box of one axis.
        hidden_sizes: units of each hidden layer, of actor and critics alike.
        activation: makes the activation after each hidden layer.
        num_critics: members of the critic ensemble.
        normalize_obs: see `Policy`.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Activation = nn.ReLU,
        num_critics: int = 2,
        normalize_obs: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space, normalize_obs=normalize_obs)
        hidden_sizes = checked(type(self).__name__, "hidden_sizes", hidden_sizes, Sizes)
        num_critics = checked(type(self).__name__, "num_critics", num_critics, PositiveInt)
        box = cast(spaces.Box, action_space)
        encoder = Encoder(observation_space)
        sizes = (encoder.out_features, *hidden_sizes)
        self.actor = Chain(encoder, MLP(sizes, activation), self._make_head(sizes[-1], box))
        self.critic = Critic(
            observation_space, box, hidden_sizes=hidden_sizes, activation=activation, num_members=num_critics
        )

    def _make_head(self, in_features: int, space: spaces.Box) -> nn.Module:
        raise NotImplementedError


class DeterministicActorCritic(ContinuousActorCritic):
    """One action per observation: DDPG, TD3, TD3+BC."""

    def _make_head(self, in_features: int, space: spaces.Box) -> nn.Module:
        return Chain(nn.Linear(in_features, space.shape[0]), nn.Tanh())

    def choose(self, obs: Tree, explore: bool, generator: torch.Generator | None) -> Tensor:
        """Return the actor's action in the env's scale; exploration is added by `act`."""
        return self.scale(self.actor(obs))


class SquashedActorCritic(ContinuousActorCritic):
    """A tanh-squashed Gaussian actor: SAC and what builds on it."""

    def _make_head(self, in_features: int, space: spaces.Box) -> nn.Module:
        return SquashedGaussianHead(in_features, space)

    def distribution(self, obs: Tree) -> SquashedGaussian:
        """Return the distribution over actions in (-1, 1) for normalised observations [B, ...]."""
        return cast(SquashedGaussian, self.actor(obs))

    def choose(self, obs: Tree, explore: bool, generator: torch.Generator | None) -> Tensor:
        """Sample, or take tanh of the mean, in the env's scale."""
        distribution = self.distribution(obs)
        return self.scale(distribution.sample(generator) if explore else distribution.mode())


class GaussianActorCritic(ContinuousActorCritic):
    """A Gaussian actor with a mean in (-1, 1), and a state-value network beside the critics: IQL."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Activation = nn.ReLU,
        num_critics: int = 2,
        normalize_obs: bool = False,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            hidden_sizes=hidden_sizes,
            activation=activation,
            num_critics=num_critics,
            normalize_obs=normalize_obs,
        )
        hidden_sizes = checked(type(self).__name__, "hidden_sizes", hidden_sizes, Sizes)
        encoder = Encoder(observation_space)
        sizes = (encoder.out_features, *hidden_sizes)
        self.value_network = Chain(encoder, MLP(sizes, activation), ValueHead(sizes[-1], 1))

    def _make_head(self, in_features: int, space: spaces.Box) -> nn.Module:
        return GaussianHead(in_features, space, bounded_mean=True, min_log_std=-10.0)

    def distribution(self, obs: Tree) -> DiagonalGaussian:
        """Return the distribution over actions around (-1, 1) for normalised observations [B, ...]."""
        return cast(DiagonalGaussian, self.actor(obs))

    def value(self, obs: Tree) -> Tensor:
        """Return the values [B] of normalised observations [B, ...]."""
        value: Tensor = self.value_network(obs)
        return value.squeeze(-1)

    def choose(self, obs: Tree, explore: bool, generator: torch.Generator | None) -> Tensor:
        """Sample within the bounds, or take the mean, in the env's scale."""
        distribution = self.distribution(obs)
        action = distribution.sample(generator).clamp(-1, 1) if explore else distribution.mode()
        return self.scale(action)
