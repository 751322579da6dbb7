"""Ranks under torchrun that die, fail, hang or are ended: the others name them within the time limit, and all end."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.torchrun import SECONDS, end, start

PROGRAM = Path(__file__).with_name("ranks_at_work.py")


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="torchrun ends processes by POSIX signals")
@pytest.mark.parametrize(("fault", "num_ranks", "cause"), [
    ("kill", 3, r"rank 1 of 3 \(pid \d+ on host \S+\) is gone"),
    ("elsewhere", 3, r"rank 1 of 3 \(pid \d+ on host \S+\) is gone"),
    ("raise", 2, r"rank 1 of 2: Traceback \(most recent call last\):\n.*\nValueError: of rank 1\n"),
    ("hang", 2, r"rank 1 of 2 \(pid \d+ on host \S+\) did not come to a collective operation within 3 s"),
    ("term", 2, r"rank 1 of 2: ended by SIGTERM"),
])  # fmt: skip
def test_the_others_name_the_rank(fault: str, num_ranks: int, cause: str, tmp_path: Path) -> None:
    errors = end(run := start(PROGRAM, str(tmp_path), fault, num_ranks=num_ranks), str(tmp_path))
    assert run.returncode == 1
    for rank in {*range(num_ranks)} - {1}:
        took, _, text = (tmp_path / f"{rank}.lost").read_text().partition("\n")
        assert re.fullmatch(cause, text, re.DOTALL), text
        assert float(took) < 20  # on a busy machine too; the limit for ranks that live and do not come is 60
        assert f"RankLostError: {text.splitlines()[0]}" in errors
    # A rank that raises prints its own error, though torchrun has meanwhile ended it.
    assert (tmp_path / "1.own").exists() == (fault == "raise")
    if fault == "hang":  # it learns where it hung
        assert re.search(r'ranks_at_work.py", line \d+, in fail\n.*time.sleep\(60\)', errors)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="torchrun ends processes by POSIX signals")
def test_a_signal_that_is_meant_for_all_names_none(tmp_path: Path) -> None:
    run = start(PROGRAM, str(tmp_path), "never")
    try:
        until = time.monotonic() + SECONDS
        while not (tmp_path / "at_work").exists() and time.monotonic() < until:
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
    finally:
        errors = end(run, str(tmp_path))
    assert run.returncode != 0
    assert "SignalException" in errors
    assert not list(tmp_path.glob("*.lost")), errors


@pytest.mark.full
@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_store_that_does_not_answer_is_named(is_foreign: bool, tmp_path: Path) -> None:
    """Without torchrun rank 0 holds it, which is stopped here, or another program has its port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        if is_foreign:
            server.listen()
        else:
            server.close()
        settings = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": os.getcwd()}
        command, file = [sys.executable, str(PROGRAM), str(tmp_path), "stop"], tmp_path / "errors"
        with file.open("w") as errors:
            runs = [
                subprocess.Popen(command, env=os.environ | settings | {"RANK": rank}, stderr=errors)
                for rank in ("1" if is_foreign else "01")
            ]
            try:
                runs[-1].wait(SECONDS / 2)
            finally:
                for run in runs:
                    run.kill()
                    run.wait()
    place = f"the process at 127.0.0.1:{port}, through which all ranks are connected,"
    assert f"RankLostError: {place} does not answer" in file.read_text()
    for lost in tmp_path.glob("*.lost"):
        assert float(lost.read_text().partition("\n")[0]) < 3 + 10
