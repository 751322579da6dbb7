"""The load of the machine: what is measured, when, and by whom."""

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import MissingExtraError, ParamsError
from rltrainer.hooks import SystemStats, system_stats
from rltrainer.hooks.system_stats import CpuProbe, GpuProbe
from tests.unit.hooks.fake_run import FakeRun


class Scripted:
    """Measures 1, 2, 3, ..."""

    def __init__(self, name: str) -> None:
        self.name, self.num = name, 0

    def __call__(self) -> dict[str, float]:
        self.num += 1
        return {self.name: float(self.num)}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_stats, "CpuProbe", lambda: Scripted("cpu_percent"))
    monkeypatch.setattr(system_stats, "GpuProbe", lambda: Scripted("gpu0_percent"))


def count(logged: list[dict[str, float]], name: str) -> int:
    return sum(name in values for values in logged)


def watched(until: Callable[[list[dict[str, float]]], bool], **options: Any) -> list[dict[str, float]]:
    """Return what a run logs that goes on until its log is so, or for 20 seconds."""
    hook, run, end = SystemStats(**options), FakeRun(), time.monotonic() + 20
    hook.setup(run)
    while not until(run.logged) and time.monotonic() < end:
        hook.post_steps(run)
        time.sleep(0.001)
    hook.shutdown(run)
    return run.logged


FAST = rl.Every(0.01, "second")


@pytest.mark.usefixtures("scripted")
def test_each_at_its_own_interval() -> None:
    began = time.monotonic()
    found = watched(
        lambda logged: count(logged, "gpu0_percent") == 3, cpu_every=FAST, gpu_every=rl.Every(0.1, "second")
    )
    assert time.monotonic() - began >= 0.3
    assert count(found, "cpu_percent") > count(found, "gpu0_percent") == 3


@pytest.mark.usefixtures("scripted")
def test_only_once() -> None:
    found = watched(lambda logged: count(logged, "cpu_percent") == 10, cpu_every=FAST, gpu_every=FAST, gpu_once=True)
    assert [values["gpu0_percent"] for values in found if "gpu0_percent" in values] == [1.0]
    assert count(found, "cpu_percent") == 10

    def both(logged: list[dict[str, float]]) -> bool:
        return count(logged, "cpu_percent") > 0 and count(logged, "gpu0_percent") > 0

    found = watched(both, cpu_every=FAST, gpu_every=FAST, cpu_once=True, gpu_once=True)
    merged = {name: value for values in found for name, value in values.items()}
    assert merged == {"cpu_percent": 1.0, "gpu0_percent": 1.0}


@pytest.mark.usefixtures("scripted")
def test_what_nobody_took_is_a_mean() -> None:
    hook, run = SystemStats(cpu_every=FAST), FakeRun()
    hook.setup(run)
    watch, end = hook._watch, time.monotonic() + 20
    assert watch is not None
    while sum(part.weight for part in watch._gathered) < 3 and time.monotonic() < end:
        time.sleep(0.001)
    hook.post_steps(run)
    hook.shutdown(run)
    (values,) = run.logged
    last = 2 * values["cpu_percent"] - 1  # (1 + ... + n) / n = (n + 1) / 2
    assert last == round(last) >= 3


@pytest.mark.usefixtures("scripted")
def test_the_thread_ends_with_the_run() -> None:
    hook, run, before = SystemStats(), FakeRun(), threading.active_count()
    hook.setup(run)
    assert threading.active_count() == before + 1
    began = time.monotonic()
    hook.shutdown(run)
    assert threading.active_count() == before
    assert time.monotonic() - began < 0.9  # it waits for a second to pass
    hook.post_steps(run)
    hook.shutdown(run)
    assert run.logged == []


def test_a_measurement_that_fails_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> dict[str, float]:
        raise subprocess.TimeoutExpired("nvidia-smi", 5)

    monkeypatch.setattr(system_stats, "CpuProbe", lambda: Scripted("cpu_percent"))
    monkeypatch.setattr(system_stats, "GpuProbe", lambda: fail)
    found = watched(lambda logged: len(logged) == 5, cpu_every=rl.Every(0.02, "second"), gpu_every=FAST)
    assert len(found) == 5
    assert {name for values in found for name in values} == {"cpu_percent"}
    assert caplog.text.count("SystemStats: a measurement failed and is left out from now on (TimeoutExpired") == 1


PROC_STAT = "cpu  {user} 0 50 {idle} 100 0 0 0 7 7\ncpu0 1 1 1 1\n"


def write_proc(folder: Path, user: int, idle: int) -> None:
    (folder / "self").mkdir(exist_ok=True)
    (folder / "stat").write_text(PROC_STAT.format(user=user, idle=idle))
    (folder / "meminfo").write_text("MemTotal:  8000 kB\nMemFree: 1 kB\nMemAvailable:  2000 kB\nHugePages_Total: 0\n")
    (folder / "self" / "statm").write_text("900 500 1 1 0 1 0")


def test_proc_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_stats, "PROC", tmp_path)
    write_proc(tmp_path, user=1000, idle=5000)
    probe = CpuProbe()
    write_proc(tmp_path, user=1030, idle=5090)  # 30 of 120 ticks busy
    expected = {
        "cpu_percent": 25.0,
        "memory_percent": 75.0,
        "process_memory_gb": 500 * os.sysconf("SC_PAGE_SIZE") / 1e9,
    }
    assert probe() == expected
    assert probe()["cpu_percent"] == 0.0  # no tick since


def test_this_machine() -> None:
    probe = CpuProbe()
    found = probe()
    assert found.keys() == {"cpu_percent", "memory_percent", "process_memory_gb"}
    assert 0 <= found["cpu_percent"] <= 100
    assert 0 < found["memory_percent"] < 100
    assert 0.01 < found["process_memory_gb"] < 100


class Times(tuple[float, ...]):
    idle = 50.0


def test_psutil_where_there_is_no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("psutil")
    module.cpu_times = lambda: Times((30.0, 20.0, 50.0))
    module.virtual_memory = lambda: SimpleNamespace(percent=40.0)
    module.Process = lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=2e9))
    monkeypatch.setitem(sys.modules, "psutil", module)
    monkeypatch.setattr(system_stats, "PROC", tmp_path / "none")
    probe = CpuProbe()
    module.cpu_times = lambda: Times((32.0, 21.0, 50.0))  # 3 seconds, all of them busy
    assert probe() == {"cpu_percent": 100.0, "memory_percent": 40.0, "process_memory_gb": 2.0}


def test_neither_is_an_error_that_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr(system_stats, "PROC", tmp_path)
    text = r'SystemStats: needs psutil where there is no /proc: .*\. Run in a clone: pip install "\.\[system\]"'
    with pytest.raises(MissingExtraError, match=text):
        SystemStats().setup(FakeRun())


def test_gpus_as_nvidia_smi_tells_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "0, 35, 1024, 61"\necho "1, [N/A], 2048, 40"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    gb = 2**30 / 1e9
    expected = {"gpu0_percent": 35.0, "gpu0_memory_gb": gb, "gpu0_temperature": 61.0}
    assert GpuProbe()() == expected | {"gpu1_memory_gb": 2 * gb, "gpu1_temperature": 40.0}


def test_no_gpu_is_nothing_to_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert GpuProbe()() == {}


@pytest.mark.gpu
def test_the_gpu_of_this_machine() -> None:
    found = GpuProbe()()
    assert found["gpu0_memory_gb"] > 0


@pytest.mark.parametrize("field", ["cpu_every", "gpu_every"])
@pytest.mark.parametrize("value", [-1, 0, math.inf, math.nan, "", None, True, []])
def test_intervals(field: str, value: Any) -> None:
    with pytest.raises(
        ParamsError, match=rf"SystemStats\.{field}: must be a positive integer, of seconds, or an Every;"
    ):
        SystemStats(**{field: value})
    with pytest.raises(ParamsError, match=rf"SystemStats\.{field}: must be in seconds; got Every\(n=3, unit='epoch'\)"):
        SystemStats(**{field: rl.Every(3, "epoch")})


@pytest.mark.parametrize("field", ["cpu_once", "gpu_once"])
@pytest.mark.parametrize("value", [-1, 0, math.inf, math.nan, "", None, []])
def test_flags(field: str, value: Any) -> None:
    with pytest.raises(ParamsError, match=rf"SystemStats\.{field}: must be True or False; got "):
        SystemStats(**{field: value})
