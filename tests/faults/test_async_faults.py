"""Workers of an `AsyncCollector` under faults: raising, dead, hanging, closed. Nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import EnvError, NonFiniteError
from tests.faults.envs import FaultyEnv, StuckEnv, refuse_to_make
from tests.faults.test_worker_faults import wait_until_gone


class NaNEnv(FaultyEnv):
    """Observes NaN in its third step."""

    def obs(self) -> Any:
        return super().obs() * (np.nan if self.step_count == 3 else 1)


def envs_of(env: Any = FaultyEnv, num_envs: int = 1, **options: Any) -> Any:
    return rl.make_vec(partial(env, **options), num_envs)


def in_workers(**options: Any) -> Any:
    return rl.make_vec(partial(FaultyEnv, **options), 2, backend="workers", num_workers=1, on_env_error="restart")


def collector_of(make_envs: Any, num_workers: int = 1, num_envs: int = 1, **options: Any) -> rl.AsyncCollector:
    policy = rl.ActorCritic.for_envs(envs_of(), hidden_sizes=(4,))
    spaces = policy.observation_space, policy.action_space
    buffer = rl.ReplayBuffer(100, *spaces, num_envs=num_workers * num_envs)
    return rl.AsyncCollector(policy, make_envs, num_workers, buffer, **options)


def collect_often(collector: rl.AsyncCollector, num_steps: int) -> None:
    for _ in range(20):
        collector.collect(num_steps=num_steps)


def pids_of(collector: rl.AsyncCollector) -> list[int]:
    return [worker._process.pid for worker in collector._team.workers]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("value", "ValueError: the wheel is off"),
        ("two arguments", "TwoArgumentsError: this and that"),
        ("unpicklable", "UnpicklableError: no way out"),
        ("sys.exit", "SystemExit: 3"),
    ],
)
def test_an_exception_arrives_and_the_envs_start_anew(fault: str, text: str) -> None:
    collector = collector_of(partial(envs_of, fault=fault, at=3), 2, max_ahead=0)
    pids = pids_of(collector)
    assert collector.collect(num_steps=4).num_env_steps == 4
    with pytest.raises(EnvError) as caught:
        collector.collect(num_steps=4)
    starts = tuple(f"worker {i} (pid {pid}), during the collection of 2 rows: " for i, pid in enumerate(pids))
    assert str(caught.value).startswith(starts)
    assert text in str(caught.value)
    assert "In the worker process:\nTraceback" in str(caught.value)
    assert isinstance(collector.buffer, rl.ReplayBuffer)
    assert len(collector.buffer) == 4  # nothing of the collection that failed
    assert collector.starts_anew
    assert collector.collect(num_steps=4).num_env_steps == 4  # the processes are well
    collector.close()
    wait_until_gone(pids, 5.0)


def test_a_number_that_is_not_finite_is_named() -> None:
    collector = collector_of(partial(envs_of, NaNEnv), max_ahead=0)
    with pytest.raises(NonFiniteError, match=r"worker 0 \(pid \d+\), during .* 5 rows: env 0, step 3: obs\[?.* = nan"):
        collector.collect(num_steps=5)
    collector.close()


@pytest.mark.parametrize(("fault", "how"), [("kill", "was killed by SIGKILL"), ("os._exit", "exited with code 7")])
def test_a_dead_worker(fault: str, how: str) -> None:
    collector = collector_of(partial(envs_of, fault=fault, at=20, length=30), 2, max_ahead=0)
    pids = pids_of(collector)
    collector.collect(num_steps=20)
    started = time.monotonic()
    with pytest.raises(EnvError, match=rf"^worker [01] \(pid \d+\) {how} during the collection of 15 rows$"):
        collector.collect(num_steps=30)
    assert time.monotonic() - started < 3.0
    wait_until_gone(pids, 5.0)
    with pytest.raises(EnvError, match="AsyncCollector: its workers have ended, by close or by a failure; make a"):
        collector.collect(num_steps=1)


def test_a_worker_that_dies_while_the_learner_updates() -> None:
    collector = collector_of(envs_of, 2)
    collector.collect(num_steps=2)
    pids = pids_of(collector)
    os.kill(pids[1], signal.SIGTERM)
    wait_until_gone(pids[1:], 5.0)
    with pytest.raises(EnvError, match=rf"^worker 1 \(pid {pids[1]}\) was killed by SIGTERM during the collection of "):
        collect_often(collector, 2)  # what it had collected before counts
    wait_until_gone(pids, 5.0)


def test_a_hanging_env() -> None:
    collector = collector_of(partial(envs_of, fault="hang", at=3), step_timeout=1.0)
    pids = pids_of(collector)
    text = rf"worker 0 \(pid {pids[0]}\) hung: the collection of \d+ rows took longer than step_timeout=1 seconds"
    with pytest.raises(EnvError, match=text):
        collector.collect(num_steps=10)
    wait_until_gone(pids, 5.0)


def test_a_worker_that_was_stopped_acts_with_no_stale_weights() -> None:
    collector = collector_of(envs_of, step_timeout=1.0, max_ahead=0)
    collector.collect(num_steps=2)
    (pid,) = pids_of(collector)
    os.kill(pid, signal.SIGSTOP)
    collector.sync()
    with pytest.raises(EnvError, match=rf"worker 0 \(pid {pid}\) hung: the collection of 2 rows took longer than"):
        collector.collect(num_steps=2)
    wait_until_gone([pid], 5.0)


def test_envs_that_cannot_be_made() -> None:
    with pytest.raises(EnvError, match=r"worker 0 \(pid \d+\), during the making of the envs: ValueError: no licence"):
        collector_of(refuse_to_make)
    with pytest.raises(EnvError, match=r"worker 0 \(pid \d+\) exited with code 7 during the making of the envs; the w"):
        collector_of(partial(os._exit, 7))


def test_envs_in_processes_of_their_own_are_restarted_there() -> None:
    collector = collector_of(partial(in_workers, fault="value", at=3, length=30), num_envs=2)
    with pytest.raises(EnvError, match="max_restarts=3"):
        collect_often(collector, 4)
    collector.close()


def test_closing_takes_no_longer_than_five_seconds() -> None:
    collector = collector_of(partial(envs_of, StuckEnv), 2)
    collector.collect(num_steps=2)
    pids = pids_of(collector)
    started = time.monotonic()
    collector.close()
    assert time.monotonic() - started < 6.0
    wait_until_gone(pids, 1.0)
    collector.close()


def test_workers_end_with_what_holds_them() -> None:
    collector = collector_of(envs_of, 2)
    collector.collect(num_steps=2)
    pids = pids_of(collector)
    del collector
    wait_until_gone(pids, 5.0)


PROGRAM = """
from functools import partial
from tests.faults.test_async_faults import collector_of, envs_of, pids_of
import os, signal, sys
if __name__ == "__main__":
    collector = collector_of(envs_of, 2)
    collector.collect(num_steps=20)
    print(*pids_of(collector), flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "raise":
        raise SystemExit(3)
"""


@pytest.mark.parametrize(("how", "code"), [("kill", -signal.SIGKILL), ("raise", 3), ("end", 0)])
def test_no_worker_outlives_its_parent(how: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    wait_until_gone([int(pid) for pid in done.stdout.split()], 8.0)


def test_files_and_threads_stay_flat() -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    collector_of(envs_of).close()
    before = files()
    for _ in range(3):
        collector = collector_of(envs_of)
        collector.collect(num_steps=2)
        collector.close()
        del collector
    assert files() <= before
