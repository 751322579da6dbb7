"""Worker processes: calls and their results, reports, failures, deaths, time limits, ends."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rltrainer.errors import EnvError, SpaceError
from rltrainer.processes.channel import dumps, loads
from rltrainer.processes.program import Link
from rltrainer.processes.shared_arrays import SharedArrays
from rltrainer.processes.worker import Report, Worker, WorkerGroup, WorkerLostError, make_context


class Calculator:
    """A program whose methods do one thing each."""

    def __init__(self, link: Link, start: int) -> None:
        self.link, self.total = link, start

    def step(self) -> None:
        self.total += 1

    def add(self, number: int) -> int:
        self.total += number
        return self.total

    def write(self, layout: Any) -> None:
        SharedArrays(layout, self.link.receive_file()).arrays["x"][:] = self.total

    def ask(self) -> Any:
        self.link.report("half")
        return self.link.ask("how many?")

    def fail(self, error: BaseException) -> None:
        raise error

    def hide(self) -> Any:
        return lambda: None

    def beat(self, times: int, seconds: float) -> int:
        for number in range(times):
            self.link.pulse[0] = number
            time.sleep(seconds)
        return times

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def group() -> Iterator[WorkerGroup[Worker]]:
    made = WorkerGroup[Worker]("Test")
    context = make_context("fork", "Test")
    made.workers += [Worker(context, f"worker {n}", Calculator, (n,), timeout=1.0, spins=n == 0) for n in range(2)]
    yield made
    made.end()


@pytest.fixture
def worker(group: WorkerGroup[Worker]) -> Worker:
    return group.workers[0]


def called(worker: Worker, name: str, *arguments: Any) -> Any:
    worker.call(f"its {name}", name, *arguments)
    return worker.receive()


pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_calls_steps_and_arrays(group: WorkerGroup[Worker]) -> None:
    first, second = group.call_each("adding", "add", [(10,), (20,)])
    for one in group.workers:
        one.step("a step")
    assert group.gather(group.workers) == [None, None]
    memory = SharedArrays({"x": np.dtype((np.float32, (3,)))})
    assert group.call_all("writing", "write", memory.layout, file=memory.file) == [None, None]
    assert memory.arrays["x"].tolist() in ([first + 1] * 3, [second + 1] * 3)


def test_reports_and_questions_come_before_the_result(worker: Worker) -> None:
    worker.call("asking", "ask")
    assert worker.receive() == Report("half")
    assert worker.receive() == Report("how many?")
    assert worker.is_busy
    worker.reply(3)
    assert worker.receive() == 3
    assert not worker.is_busy


@pytest.mark.parametrize(("error", "kind", "text"), [
    (ValueError("no wheel"), EnvError, r"during its fail: ValueError: no wheel\n\nIn the worker process:\nTraceback"),
    (SystemExit(3), EnvError, "during its fail: SystemExit: 3\n"),
    (SpaceError("too wide"), SpaceError, "during its fail: too wide$"),
])  # fmt: skip
def test_what_a_call_raises_is_raised_here(worker: Worker, error: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=rf"^worker 0 \(pid {worker.process.pid}\), {text}"):
        called(worker, "fail", error)
    assert called(worker, "add", 0) is not None


def test_a_result_that_cannot_travel(worker: Worker) -> None:
    with pytest.raises(EnvError, match="the result cannot be sent to another process: Can't pickle"):
        called(worker, "hide")


def test_the_time_limit_is_of_the_pulse(worker: Worker) -> None:
    assert called(worker, "beat", 4, 0.4) == 4


def test_the_first_that_is_ready(group: WorkerGroup[Worker]) -> None:
    slow, fast = group.workers
    slow.call("sleeping", "beat", 1, 0.5)
    fast.call("adding", "add", 1)
    assert group.ready(group.workers, None) == [fast]
    assert isinstance(fast.receive(), int)
    assert group.ready([slow], 0.0) == []
    assert group.gather([slow]) == [1]


@pytest.mark.parametrize("how", ["hangs", "dies"])
def test_a_lost_worker_ends_its_group(how: str) -> None:
    group = WorkerGroup[Worker]("Test")
    context = make_context("fork", "Test")
    group.workers += [Worker(context, f"worker {n}", Calculator, (n,), timeout=0.5) for n in range(2)]
    first, pid = group.workers[0], group.workers[0].process.pid
    first.call("its work", "beat", 1, 60.0)
    if how == "dies":
        os.kill(pid, signal.SIGKILL)
    lost = "hung: its work took longer than step_timeout=0.5 seconds" if how == "hangs" else "was killed by SIGKILL"
    with pytest.raises(WorkerLostError, match=rf"^worker 0 \(pid {pid}\) {lost}"):
        group.gather([first])
    with pytest.raises(EnvError, match="^Test: its workers have ended, by close or by a failure; make a new one$"):
        group.call_all("adding", "add", 1)


def test_tensors_travel_by_value() -> None:
    tensor = torch.arange(3)
    assert torch.equal(loads(dumps(tensor)), tensor)
    assert not tensor.is_shared(), "in /dev/shm"
