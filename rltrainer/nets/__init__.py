"""Networks, action distributions, exploration, normalisers and the policies built of them."""

from rltrainer.nets.actor_critic import (
    Actor,
    ActorCritic,
    CategoricalActorCritic,
    DeterministicActorCritic,
    DiscreteActorCritic,
    GaussianActorCritic,
    SquashedActorCritic,
)
from rltrainer.nets.encoder import SmallConvEncoder
from rltrainer.nets.exploration import EpsilonGreedy, Exploration, GaussianNoise, OrnsteinUhlenbeckNoise
from rltrainer.nets.flow_actor_critic import FlowActorCritic
from rltrainer.nets.module_state import IncompatibleKeys
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.policy import Decision, Policy
from rltrainer.nets.q_network import CategoricalQNetwork, QNetwork, QuantileQNetwork
from rltrainer.nets.recurrent_actor_critic import RecurrentActorCritic
from rltrainer.nets.recurrent_q_network import RecurrentQNetwork

__all__ = [
    "Actor", "ActorCritic", "CategoricalActorCritic", "CategoricalQNetwork", "Decision", "DeterministicActorCritic",
    "DiscreteActorCritic", "EpsilonGreedy", "Exploration", "FlowActorCritic", "GaussianActorCritic", "GaussianNoise",
    "IncompatibleKeys", "NetParams", "OrnsteinUhlenbeckNoise", "Policy", "QNetwork", "QuantileQNetwork",
    "RecurrentActorCritic", "RecurrentQNetwork", "SmallConvEncoder", "SquashedActorCritic",
]  # fmt: skip
