"""Ranks under torchrun that die, fail, hang or are ended: the others name them within the time limit, and all end."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("ranks_at_work.py")
SECONDS = 60.0


def start(fault: str, folder: Path, num_ranks: int = 2) -> "subprocess.Popen[str]":
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    command = [*torchrun, str(PROGRAM), fault, str(folder)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True)


def end(run: "subprocess.Popen[str]", folder: Path) -> str:
    """Wait for the end of all processes, and return what they wrote."""
    try:
        errors = run.communicate(timeout=SECONDS)[1]
    finally:
        run.kill()
        left = []
        for path in folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)
                left.append(path.stem)
    assert left == [], errors
    return errors


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="torchrun ends processes by POSIX signals")
@pytest.mark.parametrize(
    ("fault", "num_ranks", "cause", "seconds"),
    [
        ("kill", 2, r"rank 1 of 2 \(pid \d+ on host \S+\) is gone", 1.5),
        ("kill", 3, r"rank 1 of 3 \(pid \d+ on host \S+\) is gone", 1.5),
        ("elsewhere", 3, r"rank 1 of 3 \(pid \d+ on host \S+\) is gone", 2.5),
        ("raise", 2, r"rank 1 of 2: Traceback \(most recent call last\):\n.*\nValueError: of rank 1\n", 1.0),
        ("hang", 2, r"rank 1 of 2 \(pid \d+ on host \S+\) did not come to a collective operation within 3 s", 5.0),
        ("term", 2, r"rank 1 of 2: ended by SIGTERM", 2.5),
    ],
)
def test_the_others_name_the_rank(fault: str, num_ranks: int, cause: str, seconds: float, tmp_path: Path) -> None:
    errors = end(run := start(fault, tmp_path, num_ranks), tmp_path)
    assert run.returncode == 1
    for rank in {*range(num_ranks)} - {1}:
        took, _, text = (tmp_path / f"{rank}.lost").read_text().partition("\n")
        assert re.fullmatch(cause, text, re.DOTALL), text
        assert float(took) < seconds
        assert f"RankLostError: {text.splitlines()[0]}" in errors
    # A rank that raises prints its own error, though torchrun has meanwhile ended it.
    assert (tmp_path / "1.own").exists() == (fault == "raise")
    if fault == "hang":  # it learns where it hung
        assert re.search(r'ranks_at_work.py", line \d+, in fail\n.*time.sleep\(60\)', errors)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="torchrun ends processes by POSIX signals")
def test_a_signal_that_is_meant_for_all_names_none(tmp_path: Path) -> None:
    run = start("never", tmp_path)
    try:
        until = time.monotonic() + SECONDS
        while not (tmp_path / "at_work").exists() and time.monotonic() < until:
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
    finally:
        errors = end(run, tmp_path)
    assert run.returncode != 0
    assert "SignalException" in errors
    assert not list(tmp_path.glob("*.lost")), errors
