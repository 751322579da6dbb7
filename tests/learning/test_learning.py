"""Learning against published scores: median of five seeds. Slow: `make learning`."""

import pytest

from benchmarks.learning import TASKS, passes


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TASKS)
def test_learning(name: str) -> None:
    first = TASKS[name].first_seed
    outcomes = [TASKS[name].run(seed) for seed in range(first, first + 5)]
    assert passes(TASKS[name], outcomes), outcomes
