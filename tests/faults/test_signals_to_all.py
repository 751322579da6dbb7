"""Signals to all processes of a run, as Ctrl-C, `timeout`, schedulers and service managers send them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rltrainer.checkpoint import read_checkpoint

ROOT = Path(__file__).parents[2]
SECONDS = 60.0


def wait_for_checkpoint(run: subprocess.Popen[str], folder: Path, later_than: int = 0) -> int:
    """Return the step of the newest checkpoint of a run, as soon as it has one later than that."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and run.poll() is None:
        steps = [int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*")]
        if max(steps, default=0) > later_than:
            return max(steps)
        time.sleep(0.02)
    raise AssertionError("no checkpoint")


def is_gone(group: int) -> bool:
    """Return whether nobody is left of a group of processes, within seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="workers ask /proc what their parent handles")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_workers_finish_the_training_step(number: int, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.resume.killed", "dqn", str(tmp_path), "workers"]
    folder = tmp_path / "checkpoints"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            step = wait_for_checkpoint(run, folder)
            os.killpg(run.pid, signal.SIGUSR1)
            wait_for_checkpoint(run, folder, step)
            os.killpg(run.pid, number)
            errors = run.communicate(timeout=SECONDS)[1]
            assert is_gone(run.pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == code, errors
    assert "EnvError" not in errors
    newest = max(folder.glob("checkpoint-*"))
    assert read_checkpoint(newest)["trainer"]["stop_reason"] == "signal"
