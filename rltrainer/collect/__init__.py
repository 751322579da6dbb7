"""Collection: the only room that steps envs."""

from rltrainer.collect.collector import Collector
from rltrainer.collect.stats import CollectStats, SequenceSummaryStats

__all__ = ["CollectStats", "Collector", "SequenceSummaryStats"]
