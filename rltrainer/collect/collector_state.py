"""The part of a checkpoint that is a collector's."""

from dataclasses import dataclass
from typing import Any

from rltrainer.field_rules import NonNegativeInt


@dataclass
class CollectorState:
    """State of a collector, as `Collector.state_dict` returns it.

    Args:
        generator: of actions; a tensor of bytes.
        adapter: where the envs are.
        num_rows: steps that each env has taken.
        needs_reset: whether the next collection starts the envs anew.
        memory: of policy or exploration; a tensor [N, S], or None.
    """

    generator: Any
    adapter: dict[str, Any]
    num_rows: NonNegativeInt
    needs_reset: bool
    memory: Any = None

    def problem(self) -> str | None:
        """Return what is wrong with a state that was read from a file, or None."""
        if not self.needs_reset and self.adapter.get("is_started") is not True:
            return "needs_reset: expected True for envs that were not started, found False"
        return None
