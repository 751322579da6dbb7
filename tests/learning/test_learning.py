"""Learning against published scores: the median of each task's seeds. Slow: `make learning`."""

import pytest

from benchmarks.learning import TASKS, TENSOR_TASKS, Task, passes


def learns(task: Task, num_seeds: int) -> None:
    outcomes = [task.run(seed) for seed in range(task.first_seed, task.first_seed + num_seeds)]
    assert passes(task, outcomes), outcomes


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TASKS)
def test_learning(name: str) -> None:
    learns(TASKS[name], TASKS[name].num_seeds)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TENSOR_TASKS)
def test_learning_with_envs_of_tensors(name: str) -> None:
    learns(TENSOR_TASKS[name], 1)
