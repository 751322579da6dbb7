"""The programs that measure run: each at its smallest, as the README of the benchmarks says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.timeout(300)  # each compiles several programs
@pytest.mark.parametrize(
    "command",
    [
        "gpu.py --cpu --ours --only dqn-64-1 --only ppo-256x4",
        "tensor_envs.py --only ours-tensor --case ppo-256x4 --share 0.01 --runs 1",
    ],
)
def test_a_benchmark_runs(command: str) -> None:
    program, *arguments = command.split()
    line = [sys.executable, str(ROOT / "benchmarks" / program), *arguments]
    run = subprocess.run(line, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "failed" not in run.stdout + run.stderr, run.stderr
