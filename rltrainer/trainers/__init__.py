"""Trainers: the loops that tie collectors, buffers and algorithms together."""

from rltrainer.trainers.off_policy import OffPolicyTrainer, OffPolicyTrainerParams
from rltrainer.trainers.offline import OfflineTrainer, OfflineTrainerParams
from rltrainer.trainers.on_policy import OnPolicyTrainer, OnPolicyTrainerParams
from rltrainer.trainers.online import OnlineTrainer, OnlineTrainerParams
from rltrainer.trainers.params import TrainerParams
from rltrainer.trainers.stats import EpochStats, InfoStats, Timing
from rltrainer.trainers.trainer import Trainer

__all__ = [
    "EpochStats",
    "InfoStats",
    "OffPolicyTrainer",
    "OffPolicyTrainerParams",
    "OfflineTrainer",
    "OfflineTrainerParams",
    "OnPolicyTrainer",
    "OnPolicyTrainerParams",
    "OnlineTrainer",
    "OnlineTrainerParams",
    "Timing",
    "Trainer",
    "TrainerParams",
]
