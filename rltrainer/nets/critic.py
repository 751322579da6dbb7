"""Action-value networks."""

import torch
from torch import Tensor, nn

from rltrainer.nets.encoder import Encoder
from rltrainer.nets.net_params import NetParams
from rltrainer.spaces import Space, leaf_shape
from rltrainer.tree import Tree


class Critic(nn.Module):
    """An ensemble of E action-value networks Q(obs, action), evaluated as batched matrix products.

    One ensemble serves every continuous-control algorithm: DDPG has one member, TD3, SAC and IQL two, REDQ ten; TQC's
    have K outputs, its quantiles. The members share the encoder, which has weights only where there are images or a
    user's own module. Actions are a Box of one axis; `net` gives sizes and activation.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams,
        *,
        num_members: int = 2,
        num_outputs: int = 1,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, net)
        in_features = self.encoder.out_features + leaf_shape(action_space)[0]
        self.ensemble = net.ensemble(num_members, in_features, num_outputs)

    def forward(self, obs: Tree, action: Tensor, num_members: int | None = None) -> Tensor:
        """Return the action values of normalised observations and actions in [-1, 1]: [E, B], or [E, B, K] if K > 1.

        With `num_members` only the first so many members are computed.
        """
        features = torch.cat([self.encoder(obs), action], dim=-1)
        return self.ensemble(features, num_members)  # type: ignore[no-any-return]  # nn.Module

    def values(self, features: Tensor, action: Tensor) -> Tensor:
        """Return the values [E, N, B], or [E, N, B, K], of actions [N, B, A] for encoded observations [B, F]."""
        features = features.expand(len(action), *features.shape)
        q: Tensor = self.ensemble(torch.cat([features, action], dim=-1).flatten(0, 1))
        return q.view(len(q), *action.shape[:2], *q.shape[2:])
