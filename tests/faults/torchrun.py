"""Programs that torchrun starts in several processes, and the end of them all."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = "RLTRAINER_TEST_RUN"
"""The variable by which the processes of a program are known; their children inherit it."""
SECONDS = 100.0


def start(program: Path, *arguments: str, num_ranks: int = 2, max_restarts: int = 0) -> "subprocess.Popen[str]":
    """Start a program of this folder, the first of whose arguments no other one has."""
    options = ["--standalone", "--nproc-per-node", str(num_ranks), "--max-restarts", str(max_restarts)]
    command = [sys.executable, "-m", "torch.distributed.run", *options, str(program), *arguments]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2]), MARK: arguments[0]}
    return subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True)


def end(run: "subprocess.Popen[str]", mark: str) -> str:
    """Wait for the end of all processes, and return what they wrote."""
    try:
        errors = run.communicate(timeout=SECONDS)[1]
    finally:
        run.kill()
        until = time.monotonic() + 15.0  # for workers of a rank that was killed to see it
        while (left := processes_of(mark)) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert left == [], errors
    return errors


def processes_of(mark: str) -> list[int]:
    """Return the processes with this mark that are alive."""
    found, text = [], f"{MARK}={mark}\0".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or gone
            found += [int(path.parent.name)] if text in path.read_bytes() else []
    return found
