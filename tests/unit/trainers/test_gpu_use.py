"""Memory and time of a GPU in the log; a stand-in plays the device."""

from typing import Any

import pytest
import torch

from rltrainer.trainers.run_log import GpuUse
from tests.resume.runs import build
from tests.unit.loggers.rows import ListLogger as Rows


class Device:
    """A device whose clock a test sets; events are reached when `reached` says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.reached, self.events = 0.0, True, []
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                device.events.append(self)

            def record(self, stream: Any) -> None:
                self.time = device.now

            def query(self) -> bool:
                return device.reached

            def elapsed_time(self, end: Any) -> float:
                return end.time - self.time

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
        for name, mib in (("memory_allocated", 3), ("max_memory_allocated", 5), ("memory_reserved", 8)):
            monkeypatch.setattr(torch.cuda, name, lambda device, mib=mib: mib * 2**20)


MEMORY = {"memory": 3.0, "memory_peak": 5.0, "memory_reserved": 8.0}


def test_time_is_the_mean_of_the_update_steps_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    use = GpuUse(torch.device("cuda"))
    for milliseconds in (10.0, 30.0):
        with use:
            device.now += milliseconds
        device.now += 1000.0  # a collection
    assert len(use._under_way) == 0  # what has ended is not kept
    assert use.values() == MEMORY | {"update_seconds": 0.02}
    assert use.values() == MEMORY  # none since
    device.reached = False
    with use:
        device.now += 50.0
    assert use.values() == MEMORY
    device.reached = True
    assert use.values() == MEMORY | {"update_seconds": 0.05}


def test_a_run_on_a_gpu_has_a_row_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build("ppo", logger=(logger := Rows()))
    trainer.run()
    assert logger.of("gpu") == []  # without one
    Device(monkeypatch)
    trainer.algorithm.device = torch.device("cuda")
    log = type(trainer._log)(trainer.params, trainer.algorithm, "env_step")
    trainer.algorithm.device = torch.device("cpu")
    trainer._log = log
    trainer.run()
    assert logger.of("gpu") == [(step, MEMORY | {"update_seconds": 0.0}) for step in (20, 40, 60)]


def test_a_run_without_a_logger_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device, trainer = Device(monkeypatch), build("ppo")
    trainer.algorithm.device = torch.device("cuda")
    with type(trainer._log)(trainer.params, trainer.algorithm, "env_step").updating:
        assert device.events == []
