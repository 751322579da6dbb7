"""Collection: the only room that steps envs."""

from rltrainer.collect.async_collector import AsyncCollector
from rltrainer.collect.batched_collector import BatchedCollector, InferenceParams
from rltrainer.collect.collect_stats import CollectStats, SequenceSummaryStats
from rltrainer.collect.collector import Collector
from rltrainer.collect.data_source import DataSource
from rltrainer.collect.ray_collector import RayCollector

__all__ = [
    "AsyncCollector", "BatchedCollector", "CollectStats", "Collector", "DataSource", "InferenceParams",
    "RayCollector", "SequenceSummaryStats",
]  # fmt: skip
