"""Collection: the only room that steps envs."""

from rltrainer.collect.collect_stats import CollectStats, SequenceSummaryStats
from rltrainer.collect.collector import Collector
from rltrainer.collect.data_source import DataSource

__all__ = ["CollectStats", "Collector", "DataSource", "SequenceSummaryStats"]
