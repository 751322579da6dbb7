"""Collection: the only room that steps envs."""

from rltrainer.collect.collect_stats import CollectStats, SequenceSummaryStats
from rltrainer.collect.collector import Collector

__all__ = ["CollectStats", "Collector", "SequenceSummaryStats"]
