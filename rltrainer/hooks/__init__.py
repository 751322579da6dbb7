"""Hooks of a trainer: their base class, their context, the runner that calls them, and hooks for common needs."""

from rltrainer.hooks.batch_recorder import BatchRecorder
from rltrainer.hooks.batch_sub_sampler import BatchSubSampler
from rltrainer.hooks.clear_cuda_cache import ClearCudaCache
from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.early_stopping import EarlyStopping
from rltrainer.hooks.evaluate import Evaluate
from rltrainer.hooks.function_hook import FunctionHook
from rltrainer.hooks.hook import TrainerHook
from rltrainer.hooks.hook_runner import HookRunner
from rltrainer.hooks.log_scalar import LogScalar
from rltrainer.hooks.log_timing import LogTiming
from rltrainer.hooks.max_episodes import MaxEpisodes
from rltrainer.hooks.reward_normalizer import RewardNormalizer
from rltrainer.hooks.select_keys import SelectKeys
from rltrainer.hooks.system_stats import SystemStats

__all__ = [
    "BatchRecorder", "BatchSubSampler", "ClearCudaCache", "EarlyStopping", "Evaluate", "FunctionHook", "HookRunner",
    "LogScalar", "LogTiming", "MaxEpisodes", "RewardNormalizer", "SelectKeys", "SystemStats", "TrainerContext",
    "TrainerHook",
]  # fmt: skip
