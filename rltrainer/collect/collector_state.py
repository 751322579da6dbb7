"""The part of a checkpoint that is a collector's."""

from dataclasses import dataclass, field
from typing import Any

from rltrainer.collect.episode_counter import RunningEpisodes
from rltrainer.collect.weight_sync import SyncState
from rltrainer.validation.field_rules import NonNegativeInt


@dataclass
class CollectorState:
    """State of a collector.

    Args:
        generator: its bytes.
        adapter: see `AdapterState`.
        num_rows, needs_reset: see `Collector`.
        memory: [N, S], or None.
        weights: of a copy that acts.
        episodes: those that are running; None where none is.
        is_stored: whether the buffers hold what led to where the envs are.
    """

    generator: Any
    adapter: dict[str, Any]
    num_rows: NonNegativeInt
    needs_reset: bool
    memory: Any = None
    weights: SyncState = field(default_factory=SyncState)
    episodes: RunningEpisodes | None = None
    is_stored: bool = False

    def problem(self) -> str | None:
        """Return what is wrong with a state that was read from a file, or None."""
        if not self.needs_reset and self.adapter.get("is_started") is not True:
            return "needs_reset: expected True for envs that were not started, found False"
        return None


@dataclass
class StreamState:
    """State of a batched collector beside that of a collector: how many steps each env has taken, for errors."""

    num_steps: list[NonNegativeInt]
    num_dropped: NonNegativeInt
