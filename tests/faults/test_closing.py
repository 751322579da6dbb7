"""`close` never raises, and never takes more than five seconds, whatever state the envs are in."""

import gc
import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rltrainer as rl
from rltrainer.envs.workers.worker_vector_env import WorkerVectorEnv
from tests.faults.envs import FaultyEnv, StuckEnv
from tests.faults.test_worker_faults import alarm, wait_until_gone

MAKERS: dict[str, Any] = {
    "sync": lambda **options: rl.make_vec(partial(FaultyEnv, **options), 2, backend="sync"),
    "workers": lambda **options: rl.make_vec(partial(FaultyEnv, **options), 2, backend="workers", num_workers=2),
    "gymnasium sync": lambda **options: gym.vector.SyncVectorEnv([partial(FaultyEnv, **options)] * 2),
    "gymnasium async": lambda **options: gym.vector.AsyncVectorEnv([partial(FaultyEnv, **options)] * 2),
}
# gymnasium's async envs fork, and say by warnings what their workers raised.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore::UserWarning")


def one_worker(**options: Any) -> Any:
    return rl.make_vec(partial(FaultyEnv, **options), 1)


def open_collector(kind: str, **fault: Any) -> Any:
    """Return a collector, and the ids of the processes of its envs."""
    if kind == "async":
        policy = rl.ActorCritic.for_envs(MAKERS["sync"](), hidden_sizes=(4,))
        one: Any = rl.AsyncCollector(policy, partial(one_worker, **fault), num_workers=2)
        return one, [worker.process.pid for worker in one._team.workers]
    cls = rl.BatchedCollector if kind.startswith("batched") else rl.Collector
    envs = MAKERS[kind.removeprefix("batched ")](**fault)
    one = cls(rl.ActorCritic.for_envs(envs, hidden_sizes=(4,)), envs)
    inner = envs.unwrapped
    processes = getattr(inner, "processes", None) or [w.process for w in getattr(inner, "group", inner).workers] if (
        isinstance(inner, WorkerVectorEnv | gym.vector.AsyncVectorEnv)
    ) else []  # fmt: skip
    return one, [process.pid for process in processes]


KINDS = [*MAKERS, "batched workers", "async"]
OF_PROCESSES = ["workers", "gymnasium async", "batched workers", "async"]


def close(one: Any, pids: list[int], limit: float = 5.0) -> None:
    started = time.monotonic()
    one.close()
    assert time.monotonic() - started < limit
    wait_until_gone(pids, 1.0)
    one.close()


@pytest.mark.parametrize("kind", KINDS)
def test_before_the_first_reset_and_after_a_collection(kind: str) -> None:
    close(*open_collector(kind), 3.0)
    one, pids = open_collector(kind)
    one.collect(num_steps=10)
    close(one, pids, 3.0)


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_failure(kind: str) -> None:
    one, pids = open_collector(kind, fault="value", at=2)
    with pytest.raises((rl.errors.EnvError, ValueError)):
        one.collect(num_steps=10)
    close(one, pids)


@pytest.mark.parametrize(("number", "count"), [(signal.SIGKILL, 1), (signal.SIGSTOP, 9)])
@pytest.mark.parametrize("kind", OF_PROCESSES)
def test_of_processes_that_were_killed_or_stopped(kind: str, number: int, count: int) -> None:
    one, pids = open_collector(kind)
    one.collect(num_steps=10)
    for pid in pids[:count]:
        os.kill(pid, number)
    close(one, pids)


@pytest.mark.parametrize("kind", OF_PROCESSES)
def test_in_the_middle_of_a_step_that_hangs(kind: str) -> None:
    one, pids = open_collector(kind, fault="hang", at=2)
    with pytest.raises(KeyboardInterrupt), alarm(KeyboardInterrupt()):
        one.collect(num_steps=10)
    close(one, pids)


@pytest.mark.parametrize("error", ["value", "sys.exit"])
@pytest.mark.parametrize("kind", ["sync", "gymnasium sync"])
def test_of_envs_that_raise_when_they_are_closed(
    kind: str, error: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed = []

    def fail(self: Any) -> None:
        closed.append(self)
        if len(closed) == 1:
            raise ValueError("stuck") if error == "value" else SystemExit(3)

    monkeypatch.setattr(FaultyEnv, "close", fail)
    one, _ = open_collector(kind)
    one.close()
    assert len(closed) == (1 if kind == "gymnasium sync" else 2)  # gymnasium's stops at the first
    assert ("the vector env" if kind == "gymnasium sync" else "env 0") + " failed during close: " in caplog.text
    closed.append(one)


def test_an_interrupt_of_a_close_ends_the_workers_at_once() -> None:
    envs: Any = rl.make_vec(StuckEnv, 2, backend="workers", num_workers=2)
    workers = list(envs.group.workers)
    pids = [worker.process.pid for worker in workers]
    mine = KeyboardInterrupt()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as caught, alarm(mine):
        envs.close()
    assert caught.value is mine
    wait_until_gone(pids, 1.0)
    assert time.monotonic() - started < 2.0
    assert [worker.channel.fileno() for worker in workers] == [-1, -1]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_what_could_not_be_made_is_closed_without_a_word(num_workers: int, recwarn: pytest.WarningsRecorder) -> None:
    for backend in ("sync", "workers"):
        options: Any = {"num_workers": num_workers} if backend == "workers" else {}
        with pytest.raises(rl.errors.EnvError):
            rl.make_vec(partial(int, "x"), 2, backend=backend, **options)  # type: ignore[arg-type]  # no factory of envs
    gc.collect()
    assert not [each for each in recwarn if issubclass(each.category, pytest.PytestUnraisableExceptionWarning)]


PROGRAM = """
import sys
from tests.faults.test_closing import open_collector
if __name__ == "__main__":
    one, pids = open_collector(sys.argv[1], fault="hang", at=30)
    one.collect(num_steps=10)
    print(*pids, flush=True)
    if sys.argv[2] == "del":
        del one
"""


@pytest.mark.parametrize(("kind", "how"), [("workers", "exit"), ("batched workers", "del"), ("async", "exit")])
def test_at_the_end_of_the_interpreter(kind: str, how: str) -> None:
    command = [sys.executable, "-Wignore", "-c", PROGRAM, kind, how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    wait_until_gone([int(pid) for pid in done.stdout.split()], 3.0)


def test_a_fork_of_the_program_ends_nobody() -> None:
    envs = rl.make_vec(FaultyEnv, 2, backend="workers", num_workers=1)
    envs.reset()
    pid = os.fork()
    if not pid:
        envs.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert envs.step(np.ones(2))[0][:, 1].tolist() == [1, 1]
    envs.close()
