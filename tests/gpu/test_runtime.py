"""On a CUDA device: operations that give the same bits, its memory and time in the log, its kernels in a profile."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from tests.gpu.test_cuda import ON_A_GPU
from tests.resume.runs import build, digest
from tests.unit.loggers.rows import ListLogger as Rows

pytestmark = ON_A_GPU


def with_runtime(name: str, logger: Any = None, **runtime: Any) -> Any:
    trainer = build(name, logger=logger, device="cuda")
    return type(trainer)(trainer.algorithm, dataclasses.replace(trainer.params, runtime=rl.RuntimeParams(**runtime)))


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_two_processes_give_the_same_bits(name: str) -> None:
    """cuBLAS reads its variable once, so that a process of its own is needed."""
    program = (
        "import sys; from tests.gpu.test_runtime import digest, with_runtime\n"
        "trainer = with_runtime(sys.argv[1], deterministic=True); trainer.run(); print(digest(trainer))"
    )
    command = ["env", "CUBLAS_WORKSPACE_CONFIG=:4096:8", sys.executable, "-c", program, name]
    first, second = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2))
    assert first == second != ""


def test_without_the_variable_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with pytest.raises(rl.errors.ParamsError, match=r"^RuntimeParams\.deterministic: needs the environment variable"):
        with_runtime("ppo", deterministic=True)


def test_memory_and_time_are_logged_and_change_no_bit() -> None:
    plain, logged = with_runtime("sac"), with_runtime("sac", logger=(logger := Rows()))
    plain.run()
    logged.run()
    assert digest(plain) == digest(logged)
    rows = logger.of("gpu")
    assert len(rows) == 3
    for _, values in rows:
        assert 0 < values["memory"] <= values["memory_peak"] <= values["memory_reserved"]
    assert 0 < rows[-1][1]["update_seconds"] < 60


def test_kernels_are_in_the_profile(tmp_path: Path) -> None:
    profiler = rl.ProfilerParams(folder=str(tmp_path / "profile"), wait=0, active=1)
    with_runtime("sac", profiler=profiler).run()
    assert "Self CUDA time total" in (tmp_path / "profile" / "operators.txt").read_text()
