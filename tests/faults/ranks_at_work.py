"""A rank that sums until rank 1 fails: `torchrun ranks_at_work.py FOLDER FAULT`; its end is a file in the folder.

With "elsewhere" each process takes itself for the only one of its host.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from rltrainer.errors import RankLostError
from rltrainer.ranks import torch_ranks


def fail(fault: str) -> None:
    """Fail in one way."""
    match fault:
        case "kill" | "elsewhere":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ValueError("of rank 1")
        case "hang":
            time.sleep(60)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "term":
            os.kill(os.getpid(), signal.SIGTERM)


def main(folder: Path, fault: str) -> None:
    """Sum for ever, and fail in rank 1, or stop in rank 0."""
    if fault == "elsewhere":
        torch_ranks.host_id = lambda: os.environ["RANK"]
    ranks = torch_ranks.process_ranks(timeout=3.0)
    x = torch.ones(1000)
    began = time.monotonic()
    try:
        with ranks.reporting():
            for i in range(10**9):
                began = time.monotonic()
                if i == 100 and ranks.rank == (fault != "stop"):
                    (folder / "at_work").touch()
                    fail(fault)
                ranks.sum(x)
    except RankLostError as error:
        took = time.monotonic() - began
        time.sleep(0.5)  # as a program that closes its envs: torchrun sends SIGTERM meanwhile
        (folder / f"{ranks.rank}.lost").write_text(f"{took}\n{error}")
        raise
    except ValueError:
        time.sleep(1.5)  # its process lives on
        (folder / f"{ranks.rank}.own").touch()
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
