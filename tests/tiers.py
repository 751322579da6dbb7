"""Which tests `make test` runs: the fast tier. The others are `full`, and some of those `slow`.

A test is `full` if it is marked so, or if it took more than `LIMIT` CPU seconds when `make costs` measured it, unless
`KEPT` names it.
"""

import fnmatch
import functools
import json
from pathlib import Path

COSTS = Path(__file__).with_name("costs.json")
"""CPU seconds of each test that takes at least `RECORDED`, by its node id."""
LIMIT, RECORDED = 0.4, 0.2

KEPT: dict[str, str] = {}
"""Tests above the limit that stay in the fast tier, as patterns of node ids, each with its reason."""


@functools.cache
def costs() -> dict[str, float]:
    """Return what `make costs` measured."""
    return json.loads(COSTS.read_text()) if COSTS.exists() else {}


def tier(test: str, measured: dict[str, float]) -> str:
    """Return `fast` or `full`.

    Args:
        test: node id.
        measured: CPU seconds by node id; a test that is not in it is fast.
    """
    if measured.get(test, 0.0) <= LIMIT or any(fnmatch.fnmatchcase(test, pattern) for pattern in KEPT):
        return "fast"
    return "full"
