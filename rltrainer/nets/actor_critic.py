"""Stochastic policies in the env's own scale: an actor, and an actor with a state-value critic."""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from rltrainer.field_rules import Flag, Sizes, checked
from rltrainer.nets.chain import Chain
from rltrainer.nets.distributions import Distribution
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.heads import ValueHead, make_head
from rltrainer.nets.mlp import MLP, Activation, orthogonal_
from rltrainer.nets.normalizer import RewardNormalizer
from rltrainer.nets.policy import Policy
from rltrainer.tree import Tree

SQRT_2 = 2**0.5


class Actor(Policy):
    """A stochastic policy over a Discrete, MultiDiscrete or one-axis Box space: what behaviour cloning trains.

    Args:
        observation_space: the space of one observation.
        action_space: the space of one action.
        hidden_sizes: units of each hidden layer.
        activation: makes the activation after each hidden layer.
        normalize_obs: see `Policy`.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = nn.Tanh,
        normalize_obs: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space, normalize_obs=normalize_obs)
        hidden_sizes = checked(type(self).__name__, "hidden_sizes", hidden_sizes, Sizes)
        encoder = orthogonal_(Encoder(observation_space), SQRT_2)
        sizes = (encoder.out_features, *hidden_sizes)
        self.actor = Chain(
            encoder,
            orthogonal_(MLP(sizes, activation), SQRT_2),
            # A small last layer starts near the uniform policy, so that no action is ruled out early.
            orthogonal_(make_head(sizes[-1], action_space, type(self).__name__), 0.01),
        )

    def distribution(self, obs: Tree) -> Distribution:
        """Return the distribution over actions for normalised observations [B, ...]."""
        return cast(Distribution, self.actor(obs))

    def choose(self, obs: Tree, explore: bool, generator: torch.Generator | None) -> Tensor:
        """Sample an action, or take the likeliest one."""
        distribution = self.distribution(obs)
        return distribution.sample(generator) if explore else distribution.mode()


class ActorCritic(Actor):
    """An actor and a state-value critic, for on-policy algorithms.

    Args:
        observation_space: the space of one observation.
        action_space: the space of one action.
        hidden_sizes: units of each hidden layer, of actor and critic alike.
        activation: makes the activation after each hidden layer.
        share_encoder: actor and critic share one encoder, as is usual for images.
        normalize_obs: see `Policy`.
        normalize_reward: divide rewards by the running standard deviation of the discounted return.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: Activation = nn.Tanh,
        share_encoder: bool = False,
        normalize_obs: bool = False,
        normalize_reward: bool = False,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            hidden_sizes=hidden_sizes,
            activation=activation,
            normalize_obs=normalize_obs,
        )
        name = type(self).__name__
        hidden_sizes = checked(name, "hidden_sizes", hidden_sizes, Sizes)
        share_encoder = checked(name, "share_encoder", share_encoder, Flag)
        normalize_reward = checked(name, "normalize_reward", normalize_reward, Flag)
        encoder = cast(Encoder, self.actor[0]) if share_encoder else orthogonal_(Encoder(observation_space), SQRT_2)
        sizes = (encoder.out_features, *hidden_sizes)
        self.critic = Chain(
            encoder, orthogonal_(MLP(sizes, activation), SQRT_2), orthogonal_(ValueHead(sizes[-1], 1), 1.0)
        )
        self.reward_normalizer = RewardNormalizer() if normalize_reward else None

    def value(self, obs: Tree) -> Tensor:
        """Return the values [B] of normalised observations [B, ...]."""
        value: Tensor = self.critic(obs)
        return value.squeeze(-1)
