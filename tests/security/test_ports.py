"""The ports of a run of several ranks: on the loopback address only, and nothing that is written to one runs."""

import base64
import multiprocessing
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.distributed import TCPStore

from rltrainer.ranks.torch_ranks import process_ranks
from rltrainer.tools.runs.ranked import run_ranks
from tests.security.test_files_are_data import Canary


def write_to_all_keys(port: int, payload: bytes) -> None:
    store = TCPStore("localhost", port, is_master=False)
    for key in store.list_keys():
        store.set(key, payload)


def listening(pid: int) -> list[Any]:
    """Return the addresses on which a process listens."""
    found = psutil.Process(pid).net_connections("inet")
    return [each.laddr for each in found if each.status == psutil.CONN_LISTEN]


def attack(canary: Path, ports_before: set[int]) -> list[str]:
    """Write a pickle to all new ports on which the launcher and the ranks listen; return the addresses."""
    ranks = process_ranks()
    found = [address for pid in (os.getppid(), os.getpid()) for address in listening(pid)]
    addresses = [address for address in found if address.port not in ports_before]
    payload, fork = base64.b64encode(pickle.dumps(Canary(canary))), multiprocessing.get_context("fork")
    for address in addresses:
        writer = fork.Process(target=write_to_all_keys, args=(address.port, payload))
        writer.start()
        writer.join(2.0)
        writer.kill()  # a port that is no store never answers
    return [ip for each in ranks.from_all([address.ip for address in addresses]) for ip in each]


@pytest.mark.full
def test_what_is_written_to_the_ports_of_a_run_is_not_run(tmp_path: Path) -> None:
    before = {address.port for address in listening(os.getpid())}  # of other tests, in this launcher
    addresses = run_ranks("test", 2, partial(attack, tmp_path / "canary", before))
    assert set(addresses) == {"127.0.0.1"}
    assert not (tmp_path / "canary").exists()
