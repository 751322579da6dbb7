"""The policy of off-policy actor-critics with discrete actions: an actor, and critics that value every choice."""

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.errors import SpaceError, field_error_text
from rltrainer.field_rules import PositiveInt, checked
from rltrainer.nets.actor_critic import Actor
from rltrainer.nets.distributions import Categorical
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.mlp import Activation
from rltrainer.nets.net_params import NetParams
from rltrainer.tree import Tree


class DiscreteCritic(nn.Module):
    """An ensemble of E action-value networks that share the encoder, each with one value for every choice.

    Args:
        observation_space: the space of one observation.
        action_space: a Discrete space.
        net: the networks' parts; sizes and activation are given.
        num_members: E.
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_space: spaces.Discrete, net: NetParams, num_members: int
    ) -> None:
        super().__init__()
        self.start, self.num_actions = int(action_space.start), int(action_space.n)
        self.encoder = Encoder(observation_space, net)
        self.ensemble = net.ensemble(num_members, self.encoder.out_features, self.num_actions)

    def forward(self, obs: Tree, action: Tensor | None = None) -> Tensor:
        """Return the values of actions [B] for normalised observations: [E, B]; [E, B, A] of all choices for None."""
        q: Tensor = self.ensemble(self.encoder(obs))
        q = q.view(self.ensemble.num_members, -1, self.num_actions)
        if action is None:
            return q
        return q.gather(-1, (action - self.start).expand(q.shape[:2]).unsqueeze(-1)).squeeze(-1)


class DiscreteActorCritic(Actor):
    """A stochastic actor over a Discrete space, and an ensemble of action-value critics: discrete SAC.

    Args:
        observation_space: the space of one observation.
        action_space: a Discrete space.
        net: see `Policy`; 256-256 and ReLU by default.
        critic_net: the network of the critics, where it is not to be as the actor's. Sizes, activation and encoder that
            it leaves open are the actor's.
        hidden_sizes: see `Policy`.
        activation: see `Policy`.
        num_critics: E, members of the critic ensemble.
        normalize_obs: see `Policy`.

    Raises:
        SpaceError: the action space is not Discrete.
    """

    default_net = NetParams(hidden_sizes=(256, 256), activation=nn.ReLU)
    num_outputs = 1
    """Numbers that each critic gives for an action."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        net: NetParams | None = None,
        *,
        critic_net: NetParams | None = None,
        hidden_sizes: Sequence[int] | None = None,
        activation: Activation | None = None,
        num_critics: int = 2,
        normalize_obs: bool = False,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            net,
            hidden_sizes=hidden_sizes,
            activation=activation,
            normalize_obs=normalize_obs,
        )
        name = type(self).__name__
        if not isinstance(action_space, spaces.Discrete):
            hint = "Continuous actions are for SquashedActorCritic."
            raise SpaceError(field_error_text(name, "action_space", "must be Discrete", action_space, hint))
        num_critics = checked(name, "num_critics", num_critics, PositiveInt)
        self.critic = DiscreteCritic(observation_space, action_space, self.critic_net_params(critic_net), num_critics)

    def distribution(self, obs: Tree) -> Categorical:
        """Return the distribution over actions for normalised observations [B, ...]."""
        return cast(Categorical, super().distribution(obs))
