"""Action-value networks."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rltrainer.nets.encoder import Encoder
from rltrainer.nets.mlp import Activation, EnsembleMLP
from rltrainer.spaces import leaf_shape
from rltrainer.tree import Tree


class Critic(nn.Module):
    """An ensemble of E action-value networks Q(obs, action), evaluated as batched matrix products.

    One ensemble serves every continuous-control algorithm: DDPG has one member, TD3, SAC and IQL two, REDQ ten.
    The members share the encoder, which has weights only where there are images.

    Args:
        observation_space: the space of one observation.
        action_space: a Box of one axis.
        hidden_sizes: units of each hidden layer.
        activation: makes the activation after each hidden layer.
        num_members: E.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        *,
        hidden_sizes: Sequence[int] = (256, 256),
        activation: Activation = nn.ReLU,
        num_members: int = 2,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space)
        in_features = self.encoder.out_features + leaf_shape(action_space)[0]
        self.ensemble = EnsembleMLP(num_members, in_features, hidden_sizes, activation)

    def forward(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the action values [E, B] of normalised observations and actions in [-1, 1]."""
        return self.ensemble(torch.cat([self.encoder(obs), action], dim=-1))  # type: ignore[no-any-return]  # nn.Module
