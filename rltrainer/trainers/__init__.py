"""Trainers: the loops that tie collectors, buffers and algorithms together."""

from rltrainer.trainers.off_policy_trainer import OffPolicyTrainer, OffPolicyTrainerParams
from rltrainer.trainers.offline_trainer import OfflineTrainer, OfflineTrainerParams
from rltrainer.trainers.on_policy_trainer import OnPolicyTrainer, OnPolicyTrainerParams
from rltrainer.trainers.online_trainer import OnlineTrainer, OnlineTrainerParams
from rltrainer.trainers.run_state import EpochStats, InfoStats, Timing
from rltrainer.trainers.trainer import Trainer
from rltrainer.trainers.trainer_params import TrainerParams

__all__ = [
    "EpochStats", "InfoStats", "OffPolicyTrainer", "OffPolicyTrainerParams", "OfflineTrainer", "OfflineTrainerParams",
    "OnPolicyTrainer", "OnPolicyTrainerParams", "OnlineTrainer", "OnlineTrainerParams", "Timing", "Trainer",
    "TrainerParams",
]  # fmt: skip
