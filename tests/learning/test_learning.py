"""Learning against published scores: the median of each task's seeds. Slow: `make learning`."""

import pytest

from benchmarks.learning import TASKS, Task, passes


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
@pytest.mark.parametrize("name", ["ppo_cartpole", "sac_pendulum"])
def test_learning_with_envs_of_tensors(name: str) -> None:
    """One on policy and one off policy: `tests/probe` has others solve problems whose answers are known."""
    learns(TASKS[f"{name}_tensor"], 1)
