"""Algorithms: what turns data into better networks. One file each; nothing here steps an env."""

from rltrainer.algorithms.actor_critic.crossq import CrossQ, CrossQParams
from rltrainer.algorithms.actor_critic.discrete_sac import DiscreteSAC, DiscreteSACParams
from rltrainer.algorithms.actor_critic.flashsac import FlashSAC, FlashSACParams
from rltrainer.algorithms.actor_critic.redq import REDQ, REDQParams
from rltrainer.algorithms.actor_critic.sac import SAC, SACParams
from rltrainer.algorithms.actor_critic.simbav2 import SimbaV2, SimbaV2Params
from rltrainer.algorithms.actor_critic.td3 import DDPG, TD3, DDPGParams, TD3Params
from rltrainer.algorithms.actor_critic.tqc import TQC, TQCParams
from rltrainer.algorithms.actor_critic.xqc import XQC, XQCParams
from rltrainer.algorithms.algorithm import Algorithm, AlgorithmParams
from rltrainer.algorithms.load_file import load, load_policy
from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.off_policy_algorithm import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.algorithms.offline.bc import BC, BCParams
from rltrainer.algorithms.offline.cal_ql import CalQL, CalQLParams
from rltrainer.algorithms.offline.cql import CQL, CQLParams, DiscreteCQL, DiscreteCQLParams
from rltrainer.algorithms.offline.fqe import FQE, FQEParams
from rltrainer.algorithms.offline.fql import FQL, FQLParams
from rltrainer.algorithms.offline.iql import IQL, IQLParams
from rltrainer.algorithms.offline.rebrac import ReBRAC, ReBRACParams
from rltrainer.algorithms.offline.td3_bc import TD3BC, TD3BCParams
from rltrainer.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from rltrainer.algorithms.policy_gradient.a2c import A2C, A2CParams
from rltrainer.algorithms.policy_gradient.distillation import Distillation, DistillationParams
from rltrainer.algorithms.policy_gradient.impala import IMPALA, IMPALAParams
from rltrainer.algorithms.policy_gradient.ppo import PPO, PPOParams
from rltrainer.algorithms.policy_gradient.recurrent_ppo import RecurrentPPO
from rltrainer.algorithms.policy_gradient.reinforce import REINFORCE, REINFORCEParams
from rltrainer.algorithms.policy_gradient.rnd import RND, RNDParams
from rltrainer.algorithms.policy_gradient.trpo import TRPO, TRPOParams
from rltrainer.algorithms.q_learning.c51 import C51, C51Params
from rltrainer.algorithms.q_learning.dqn import DQN, DoubleDQN, DQNParams
from rltrainer.algorithms.q_learning.pqn import PQN, PQNParams
from rltrainer.algorithms.q_learning.qr_dqn import QRDQN, QRDQNParams
from rltrainer.algorithms.q_learning.recurrent_pqn import RecurrentPQN
from rltrainer.algorithms.symmetry import Symmetry
from rltrainer.schedules import ScheduledValue
from rltrainer.updates.optimizer import Optimizer
from rltrainer.updates.torch_optimizer import rms_prop

__all__ = [
    "A2C", "BC", "C51", "CQL", "DDPG", "DQN", "FQE", "FQL", "IMPALA", "IQL", "PPO", "PQN", "QRDQN", "REDQ", "REINFORCE",
    "RND", "SAC", "TD3", "TD3BC", "TQC", "TRPO", "XQC", "A2CParams", "Algorithm", "AlgorithmParams", "BCParams",
    "C51Params", "CQLParams", "CalQL", "CalQLParams", "CrossQ", "CrossQParams", "DDPGParams", "DQNParams",
    "DiscreteCQL", "DiscreteCQLParams", "DiscreteSAC", "DiscreteSACParams", "Distillation", "DistillationParams",
    "DoubleDQN", "FQEParams", "FQLParams", "FlashSAC", "FlashSACParams", "IMPALAParams", "IQLParams",
    "OffPolicyAlgorithm", "OffPolicyParams", "OnPolicyAlgorithm", "OnPolicyBatch", "Optimizer", "PPOParams",
    "PQNParams", "QRDQNParams", "REDQParams", "REINFORCEParams", "RNDParams", "ReBRAC", "ReBRACParams", "RecurrentPPO",
    "RecurrentPQN", "SACParams", "ScheduledValue", "SimbaV2", "SimbaV2Params", "Symmetry", "TD3BCParams", "TD3Params",
    "TQCParams", "TRPOParams", "XQCParams", "load", "load_policy", "rms_prop",
]  # fmt: skip
