"""Learning against published scores: the median of each task's seeds. Slow: `make learning`."""

import pytest

from benchmarks.learning import TASKS, passes


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TASKS)
def test_learning(name: str) -> None:
    task = TASKS[name]
    outcomes = [task.run(seed) for seed in range(task.first_seed, task.first_seed + task.num_seeds)]
    assert passes(task, outcomes), outcomes
