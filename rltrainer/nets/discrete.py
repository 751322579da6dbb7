"""The policy of off-policy actor-critics with discrete actions: an actor, and critics that value every choice."""

from typing import Unpack

from gymnasium import spaces
from torch import nn

from rltrainer.errors import SpaceError, field_error_text
from rltrainer.nets.actor_critic import Actor, ActorOptions
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.net_params import NetParams
from rltrainer.spaces import Space
from rltrainer.validation.field_rules import PositiveInt, checked


class DiscreteActorCritic(Actor):
    """A stochastic actor over a Discrete space, and E critics that value each of A choices: discrete SAC.

    `critic` maps normalised observations to action values [E, B, A]; its members share the encoder.

    Args:
        critic_net: see `ActorCritic`.
        num_critics: E.
        options: see `Actor`; networks are 256-256 and ReLU by default.

    Raises:
        SpaceError: the action space is not Discrete, or has one choice only.
    """

    default_net = NetParams(hidden_sizes=(256, 256), activation=nn.ReLU)
    num_outputs = 1
    """Numbers that each critic gives for an action."""

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams | None = None,
        *,
        critic_net: NetParams | None = None,
        num_critics: int = 2,
        **options: Unpack[ActorOptions],
    ) -> None:
        super().__init__(observation_space, action_space, net, **options)
        name, rule = type(self).__name__, "must be Discrete, with at least two choices"
        if not isinstance(action_space, spaces.Discrete) or action_space.n < 2:
            raise SpaceError(field_error_text(name, "action_space", rule, action_space))
        num_critics = checked(name, "num_critics", num_critics, PositiveInt)
        self.num_actions, self.start = int(action_space.n), int(action_space.start)
        net = self.critic_net_params(critic_net)
        encoder = Encoder(observation_space, net)
        self.critic = nn.Sequential(encoder, net.ensemble(num_critics, encoder.out_features, self.num_actions))
