"""Memory, file descriptors, threads and shared memory stay flat while env steps are taken: the short version.

`benchmarks/leaks.py` takes 500,000 env steps of each collector.
"""

import pytest

from benchmarks import leaks

SLOW = ("gymnasium async", "async, in step")
"""Processes of gymnasium's own, and a variant of `async`."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind in SLOW else kind for kind in leaks.KINDS]
)
def test_nothing_grows(kind: str) -> None:
    sizes = leaks.measure(kind, num_steps=20_000, num_points=4)
    assert leaks.grown(sizes[1:]) == {}, sizes
