"""A run that SIGKILL ends at any moment goes on as if nothing had happened: bit for bit, its log too."""

import random
from pathlib import Path

import pytest

from tests.resume.killed import MORE_RUNS, check
from tests.resume.runs import RUNS

SEED = 12


@pytest.mark.parametrize("name", ["recurrent_ppo", "dqn_prioritized", "offline_iql"])
def test_one_run_of_each_kind_of_trainer(name: str, tmp_path: Path) -> None:
    assert check(name, tmp_path, num_kills=2, chance=random.Random(SEED)) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["sync", "workers"])
@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize(("name", "more"), [*((name, "") for name in RUNS), *MORE_RUNS])
def test_every_run(name: str, more: str, num_envs: int, backend: str, tmp_path: Path) -> None:
    chance = random.Random(f"{SEED} {name} {more} {num_envs} {backend}")
    how = {"backend": backend, "start_method": "fork" if backend == "workers" else None}  # a fork server takes seconds
    check(name, tmp_path, num_kills=3, chance=chance, num_envs=num_envs, more=more, **how)
