"""How much memory there is, in and out of groups of processes, and what is said when it is too little."""

import logging
import os
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

import rltrainer as rl
from rltrainer.data import memory_forecast
from rltrainer.data.memory_forecast import available_bytes, check_fits, device_for_data
from rltrainer.errors import ParamsError, ReplayBufferError

CPU = torch.device("cpu")
MIB = 1 << 20


def fail(*_: Any, **__: Any) -> Any:
    raise OSError


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 MiB free, and no groups."""
    (tmp_path / "meminfo").write_text("MemTotal: 131072 kB\nMemAvailable:   65536 kB\n")
    (tmp_path / "cgroup").mkdir()
    monkeypatch.setattr(memory_forecast, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory_forecast, "OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(memory_forecast, "CGROUPS", tmp_path / "cgroup")
    return tmp_path


def limit(group: Path, most: object, used: int, cache: int, version: int = 2) -> None:
    group.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (most, used), strict=True):
        (group / name).write_text(f"{value}\n")
    stat = f"anon 1\ninactive_file {cache}\n" if version == 2 else f"inactive_file 1\ntotal_inactive_file {cache}\n"
    (group / "memory.stat").write_text(stat)


def test_what_the_system_tells_is_read(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}.__getitem__)
    # Linux tells what is available, here too; the amount that is installed is the fallback.
    assert available_bytes(CPU) == 64 * MIB
    (system / "meminfo").unlink()
    assert available_bytes(CPU) == 40960
    monkeypatch.setattr(os, "sysconf", fail)
    assert available_bytes(CPU) is None
    assert available_bytes(torch.device("meta")) is None


def test_a_limit_of_version_2_and_those_around_it(system: Path) -> None:
    (system / "own").write_text("0::/a/b\n")
    groups = system / "cgroup"
    limit(groups / "a" / "b", "max", 1, 0)
    assert available_bytes(CPU) == 64 * MIB
    limit(groups / "a" / "b", 50 * MIB, 20 * MIB, 5 * MIB)  # what is cached of files gives way
    assert available_bytes(CPU) == 35 * MIB
    limit(groups / "a", 30 * MIB, 25 * MIB, 0)
    assert available_bytes(CPU) == 5 * MIB
    limit(groups, 10 * MIB, 11 * MIB, 0)
    assert available_bytes(CPU) == 0


def test_a_limit_of_version_1(system: Path) -> None:
    (system / "own").write_text("12:cpu,cpuacct:/x\n7:memory:/docker/1f\n1:name=systemd:/x\n0::/x\n")
    groups = system / "cgroup" / "memory"
    limit(groups / "docker" / "1f", 9223372036854771712, MIB, 0, version=1)  # says that there is none
    assert available_bytes(CPU) == 64 * MIB
    limit(groups / "docker" / "1f", 8 * MIB, 2 * MIB, MIB, version=1)
    assert available_bytes(CPU) == 7 * MIB


def test_in_a_container_the_path_may_be_the_hosts(system: Path) -> None:
    for version, text, top in ((1, "7:memory:/docker/1f\n", "memory"), (2, "0::/../kubepods/pod1\n", ".")):
        (system / "own").write_text(text)
        limit(system / "cgroup" / top, 4 * MIB, MIB, 0, version)
        assert available_bytes(CPU) == 3 * MIB


@pytest.mark.parametrize("text", ["", "nonsense", "0:", "0::", "0::/\n\n", "a:memory:b"])
def test_whatever_the_system_says_is_no_error(text: str, system: Path) -> None:
    (system / "own").write_text(text)
    limit(system / "cgroup", "x", 1, 0)
    assert available_bytes(CPU) == 64 * MIB


def test_what_fits_and_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.data.memory_forecast.available_bytes", lambda device: 2_000_000_000)
    check_fits("Owner", "size", 5, 2_000_000_000, CPU)
    text = "Owner.size: needs 2.5 GB of memory on cpu, 2 GB are available; got 5 (int). Make it smaller."
    with pytest.raises(ReplayBufferError, match=f"^{re.escape(text)}$"):
        check_fits("Owner", "size", 5, 2_500_000_000, CPU)
    monkeypatch.setattr("rltrainer.data.memory_forecast.available_bytes", lambda device: None)
    check_fits("Owner", "size", 5, 10**20, CPU)


def test_a_buffer_needs_what_its_saving_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of 4 + 8 + 4 + 2 bytes and a slot of 4; with priorities 9 more, and 25 while it is saved."""
    space, action = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
    for cls, nbytes in ((rl.ReplayBuffer, 22), (rl.PrioritizedReplayBuffer, 22 + 9 + 25)):
        needed = 101 * nbytes
        monkeypatch.setattr("rltrainer.data.memory_forecast.available_bytes", lambda device, n=needed: n)
        cls(100, space, action)
        monkeypatch.setattr("rltrainer.data.memory_forecast.available_bytes", lambda device, n=needed - 1: n)
        with pytest.raises(ReplayBufferError, match="Buffer.capacity: needs"):
            cls(100, space, action)


@pytest.mark.parametrize(("nbytes", "free", "place", "words"), [
    (2 * 10**9, 4 * 10**9, "cuda:0", "2 GB on cuda:0; 4 GB are free on cuda:0, of which it may take half"),
    (2 * 10**9 + 1, 4 * 10**9, "cpu", "2 GB on cpu; 4 GB are free on cuda:0, of which it may take half"),
    (5 * 10**7, None, "cuda:0", "0.05 GB on cuda:0"),
])  # fmt: skip
def test_data_lies_on_a_device_if_it_leaves_half_of_it_free(
    nbytes: int, free: int | None, place: str, words: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(memory_forecast, "available_bytes", lambda device: free)
    with caplog.at_level(logging.INFO, "rltrainer"):
        assert device_for_data(nbytes, torch.device("cuda", 0)) == torch.device(place)
    assert caplog.messages == [f"replay buffer: {words}"]


def test_data_of_networks_on_the_cpu_lies_there(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rltrainer"):
        assert device_for_data(10**20, CPU) == CPU
    assert caplog.messages == []


def test_a_forecast_is_what_a_buffer_takes() -> None:
    """11 rows of three envs; of frames only one of a stack is stored: 4 numbers of 4 bytes, not 8."""
    space, action = gym.spaces.Box(-1, 1, (2, 4)), gym.spaces.Discrete(2)
    assert rl.ReplayBuffer.forecast_nbytes(30, space, action, 3) == 33 * (8 * 4 + 8 + 4 + 2 + 4)
    extra = {"log_prob": ((2,), torch.float64)}
    assert rl.ReplayBuffer.forecast_nbytes(28, space, action, 3, extra) == 33 * (8 * 4 + 8 + 4 + 2 + 4 + 16)
    assert rl.ReplayBuffer.forecast_nbytes(30, space, action, 3, frame_stack=2) == 33 * (4 * 4 + 8 + 4 + 2 + 4)
    for wrong in ((0, space, action), (30, space, action, 0)):
        with pytest.raises(ParamsError, match=r"^ReplayBuffer\.(capacity|num_envs): must be a positive integer; got 0"):
            rl.ReplayBuffer.forecast_nbytes(*wrong)
