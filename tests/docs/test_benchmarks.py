"""The programs that measure run: each at its smallest, as the README of the benchmarks says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.timeout(300)
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
    # What is to be compiled runs as written: `tests/compile` compiles, and a benchmark would for half a minute.
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1"}
    run = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "failed" not in run.stdout + run.stderr, run.stderr


def test_a_page_keeps_rows_that_are_not_measured_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from gpu_runs import merged

    before = [
        "| SAC | 1 | 90 | today |", "| SAC | 32 | 95 | today |", "SAC offline: 7 (today)", "| DQN | 1 | 5 | today |",
    ]  # fmt: skip
    now = [
        "| SAC | 1 | not measured | |",
        "SAC offline: not measured",
        "| DQN | 1 | 6 | tomorrow |",
        "| TD3 | not measured | |",
    ]
    assert merged(now, before) == [before[0], before[2], now[2], now[3]]
