"""Ray, and the cluster that this program is connected to."""

import logging
import os
import sys
from typing import Any

from rltrainer.errors import importing_extra


def connected_ray(owner: str) -> Any:
    """Return Ray for an owner; start a cluster of this machine unless the program is connected to one."""
    if "ray" not in sys.modules and "RAY_ADDRESS" not in os.environ:
        # Ray's word, which it reads at its import, for a cluster that listens on the loopback address only.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    with importing_extra(owner, "ray"):
        import ray
    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    return ray
