"""Seconds of the parts of training, the load of the machine, memory of the GPU."""

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
import torch

import rltrainer as rl
from rltrainer.errors import MissingExtraError
from rltrainer.hooks import ClearCudaCache, LogTiming, SystemStats, resources
from rltrainer.hooks.resources import CpuProbe, GpuProbe
from tests.unit.hooks.fake_run import FakeRun, episodes


class Clock:
    """Stands for `time.perf_counter`."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def training_step(
    hook: LogTiming, run: FakeRun, clock: Clock, collect: float, update: float | None, rest: float
) -> Any:
    run.advance()
    clock.now += rest
    run.collect(1.0, seconds=collect)
    clock.now += collect
    if update is not None:
        hook.pre_optim_steps(run)
        clock.now += update
    run.logged.clear()
    hook.post_steps(run)
    return run.logged[0] if run.logged else None


def test_by_hand(clock: Clock) -> None:
    hook, run = LogTiming(every=3), FakeRun()
    hook.setup(run)
    assert training_step(hook, run, clock, 2.0, None, 0.0) is None  # warm-up
    assert training_step(hook, run, clock, 2.0, 5.0, 0.5) is None
    clock.now += 1.25
    hook.test_log(run, episodes(1.0, seconds=1.0))
    found = training_step(hook, run, clock, 2.0, 5.0, 0.25)
    # other: 0.5 + 0.25 and the quarter of a second around the test episodes
    assert found == {"time_collect": 6.0, "time_update": 10.0, "time_test": 1.0, "time_other": 1.0}
    for _ in range(2):
        assert training_step(hook, run, clock, 1.0, 1.0, 0.0) is None
    found = training_step(hook, run, clock, 1.0, 1.0, 0.0)
    assert found == {"time_collect": 3.0, "time_update": 3.0, "time_test": 0.0, "time_other": 0.0}


def test_seconds_continue(clock: Clock) -> None:
    one, other, run = LogTiming(every=2), LogTiming(every=2), FakeRun()
    one.setup(run)
    training_step(one, run, clock, 2.0, 5.0, 0.5)
    state = one.state_dict()
    assert state == {"collect": 2.0, "update": 5.0, "test": 0.0, "total": 7.5}
    other.prepare_load(state)()
    clock.now += 1000.0  # between the two runs
    other.setup(run)
    found = training_step(other, run, clock, 2.0, 5.0, 0.0)
    assert found == {"time_collect": 4.0, "time_update": 10.0, "time_test": 0.0, "time_other": 0.5}
    one.reset()
    assert one.state_dict()["collect"] == 0.0


@pytest.mark.parametrize(("has_cuda", "cleared_after"), [(True, [2, 4]), (False, [])])
def test_at_intervals_where_a_gpu_is(has_cuda: bool, cleared_after: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    hook, run, cleared = ClearCudaCache(every=2), FakeRun(), list[int]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: cleared.append(run.training_step))
    for _ in range(5):
        run.advance()
        hook.post_steps(run)
    assert cleared == cleared_after


class Scripted:
    """Measures 1, 2, 3, ..."""

    def __init__(self, name: str) -> None:
        self.name, self.num = name, 0

    def __call__(self) -> dict[str, float]:
        self.num += 1
        return {self.name: float(self.num)}


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "CpuProbe", lambda: Scripted("cpu_percent"))
    monkeypatch.setattr(resources, "GpuProbe", lambda: Scripted("gpu0_percent"))


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
    end = time.monotonic() + 20
    while sum(part.weight for part in hook._gathered) < 3 and time.monotonic() < end:
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


def test_measurements_that_fail_are_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> dict[str, float]:
        raise subprocess.TimeoutExpired("nvidia-smi", 5)

    monkeypatch.setattr(resources, "CpuProbe", lambda: Scripted("cpu_percent"))
    monkeypatch.setattr(resources, "GpuProbe", lambda: fail)
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
    of_this_machine = CpuProbe()().keys()
    monkeypatch.setattr(resources, "PROC", tmp_path)
    write_proc(tmp_path, user=1000, idle=5000)
    probe = CpuProbe()
    write_proc(tmp_path, user=1030, idle=5090)  # 30 of 120 ticks busy
    held = 500 * os.sysconf("SC_PAGE_SIZE") / 1e9
    expected = {"cpu_percent": 25.0, "memory_percent": 75.0, "process_memory_gb": held}
    assert probe() == expected
    assert probe()["cpu_percent"] == 0.0  # no tick since
    assert of_this_machine == expected.keys()


class Times(tuple[float, ...]):
    idle = 50.0


def test_psutil_where_there_is_no_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("psutil")
    module.cpu_times = lambda: Times((30.0, 20.0, 50.0))
    module.virtual_memory = lambda: SimpleNamespace(percent=40.0)
    module.Process = lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=2e9))
    monkeypatch.setitem(sys.modules, "psutil", module)
    monkeypatch.setattr(resources, "PROC", tmp_path / "none")
    probe = CpuProbe()
    module.cpu_times = lambda: Times((32.0, 21.0, 50.0))  # 3 seconds, all of them busy
    assert probe() == {"cpu_percent": 100.0, "memory_percent": 40.0, "process_memory_gb": 2.0}


def test_neither_is_an_error_that_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.setattr(resources, "PROC", tmp_path)
    text = r'SystemStats: needs psutil where there is no /proc: .*\. Run: pip install "rltrainer\[system\]"'
    with pytest.raises(MissingExtraError, match=text):
        SystemStats().setup(FakeRun())


def test_gpus_as_nvidia_smi_tells_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, program = os.environ["PATH"], tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", "")
    assert GpuProbe()() == {}
    program.write_text('#!/bin/sh\necho "0, 35, 1024, 61"\necho "1, [N/A], 2048, 40"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{path}")
    gb = 2**30 / 1e9
    expected = {"gpu0_percent": 35.0, "gpu0_memory_gb": gb, "gpu0_temperature": 61.0}
    assert GpuProbe()() == expected | {"gpu1_memory_gb": 2 * gb, "gpu1_temperature": 40.0}


@pytest.mark.gpu
def test_the_gpu_of_this_machine() -> None:
    found = GpuProbe()()
    assert found["gpu0_memory_gb"] > 0
