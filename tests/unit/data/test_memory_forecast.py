"""How much memory there is, and what is said when it is too little."""

import builtins
import os
from typing import Any

import pytest
import torch

from rltrainer.data.memory_forecast import available_bytes, check_fits
from rltrainer.errors import ReplayBufferError

CPU = torch.device("cpu")


def fail(*_: Any, **__: Any) -> Any:
    raise OSError


def test_what_the_system_tells_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}.__getitem__)
    # Linux tells what is available; the amount that is installed is the fallback.
    available = available_bytes(CPU)
    assert available is not None
    monkeypatch.setattr(builtins, "open", fail)
    assert available_bytes(CPU) == 40960
    monkeypatch.setattr(os, "sysconf", fail)
    assert available_bytes(CPU) is None
    assert available_bytes(torch.device("meta")) is None


def test_what_fits_and_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.data.memory_forecast.available_bytes", lambda device: 2_000_000_000)
    check_fits("Owner", "size", 5, 2_000_000_000, CPU)
    with pytest.raises(ReplayBufferError) as error:
        check_fits("Owner", "size", 5, 2_500_000_000, CPU)
    assert str(error.value) == (
        "Owner.size: needs 2.5 GB of memory on cpu, 2 GB are available; got 5 (int). Make it smaller."
    )
    monkeypatch.setattr("rltrainer.data.memory_forecast.available_bytes", lambda device: None)
    check_fits("Owner", "size", 5, 10**20, CPU)
