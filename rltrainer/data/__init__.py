"""Buffers: where collected and logged transitions are kept, and the files they are saved in."""

from rltrainer.data.buffer_description import BufferDescription
from rltrainer.data.hindsight import HindsightReplayBuffer
from rltrainer.data.mixed import MixedBuffer
from rltrainer.data.prioritized import PrioritizedReplayBuffer
from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.rollout_buffer import RolloutBuffer
from rltrainer.data.sampler import Sampler

__all__ = [
    "BufferDescription",
    "HindsightReplayBuffer",
    "MixedBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "RolloutBuffer",
    "Sampler",
]
