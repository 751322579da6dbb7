"""Memory, file descriptors, threads and shared memory stay flat while env steps are taken: the short version.

`benchmarks/leaks.py` takes 500,000 env steps of each collector.
"""

import pytest

from benchmarks import leaks


@pytest.mark.parametrize("kind", leaks.KINDS)
def test_nothing_grows(kind: str) -> None:
    sizes = leaks.measure(kind, num_steps=20_000, num_points=4)
    assert leaks.grown(sizes[1:]) == {}, sizes
