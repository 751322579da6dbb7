"""Algorithms: what turns data into better networks. One file each; nothing here steps an env."""

from rltrainer.algorithms.a2c import A2C, A2CParams
from rltrainer.algorithms.algorithm import Algorithm, AlgorithmParams
from rltrainer.algorithms.bc import BC, BCParams
from rltrainer.algorithms.double_dqn import DoubleDQN
from rltrainer.algorithms.dqn import DQN, DQNParams
from rltrainer.algorithms.iql import IQL, IQLParams
from rltrainer.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.algorithms.on_policy import OnPolicyAlgorithm, Samples
from rltrainer.algorithms.optimizer import Optimizer
from rltrainer.algorithms.ppo import PPO, PPOParams
from rltrainer.algorithms.sac import SAC, SACParams
from rltrainer.algorithms.scheduled_value import ScheduledValue
from rltrainer.algorithms.td3 import TD3, TD3Params
from rltrainer.algorithms.td3_bc import TD3BC, TD3BCParams
from rltrainer.algorithms.torch_rule import rms_prop

__all__ = [
    "A2C",
    "BC",
    "DQN",
    "IQL",
    "PPO",
    "SAC",
    "TD3",
    "TD3BC",
    "A2CParams",
    "Algorithm",
    "AlgorithmParams",
    "BCParams",
    "DQNParams",
    "DoubleDQN",
    "IQLParams",
    "OffPolicyAlgorithm",
    "OffPolicyParams",
    "OnPolicyAlgorithm",
    "Optimizer",
    "PPOParams",
    "SACParams",
    "Samples",
    "ScheduledValue",
    "TD3BCParams",
    "TD3Params",
    "rms_prop",
]
