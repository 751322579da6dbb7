"""Hooks of a trainer: their base class, their context, the runner that calls them, and hooks for common needs."""

from rltrainer.hooks.batch_recorder import BatchRecorder
from rltrainer.hooks.batch_transforms import BatchSubSampler, RewardNormalizer, SelectKeys
from rltrainer.hooks.evaluate import Evaluate
from rltrainer.hooks.hook import FunctionHook, TrainerContext, TrainerHook
from rltrainer.hooks.hook_runner import HookRunner
from rltrainer.hooks.log_scalar import LogScalar
from rltrainer.hooks.resources import ClearCudaCache, LogTiming, SystemStats
from rltrainer.hooks.stopping import EarlyStopping, MaxEpisodes

__all__ = [
    "BatchRecorder", "BatchSubSampler", "ClearCudaCache", "EarlyStopping", "Evaluate", "FunctionHook", "HookRunner",
    "LogScalar", "LogTiming", "MaxEpisodes", "RewardNormalizer", "SelectKeys", "SystemStats", "TrainerContext",
    "TrainerHook",
]  # fmt: skip
