"""The plan a trainer hands to its algorithm: the one seam between them."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class UpdatePlan:
    """What an algorithm may know of the run that drives it.

    Args:
        progress: returns the share of the planned training that is done, in [0, 1]; schedules read it.
    """

    progress: Callable[[], float] = lambda: 0.0
