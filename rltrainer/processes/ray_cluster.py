"""Ray, and the cluster that this program is connected to."""

import logging
import os
from typing import Any

from rltrainer.errors import importing_extra


def connected_ray(owner: str) -> Any:
    """Return Ray for an owner; start a cluster of this machine unless the program is connected to one."""
    with importing_extra(owner, "ray"):
        import ray
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    return ray
