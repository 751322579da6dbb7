"""Workers of an `AsyncCollector` under faults: raising, dead, hanging, closed. Nothing is left behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import EnvError, NonFiniteError
from tests.faults.envs import FaultyEnv, hang_to_make, makes_file, refuse_to_make
from tests.faults.test_worker_faults import terminate, wait_until_gone


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
    return [worker.process.pid for worker in collector._team.workers]


@pytest.mark.parametrize(("fault", "text"), [
    ("value", "ValueError: the wheel is off"), ("two arguments", "TwoArgumentsError: this and that"),
    ("unpicklable", "UnpicklableError: no way out"), ("sys.exit", "SystemExit: 3"),
])  # fmt: skip
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
    assert collector.needs_reset
    assert collector.collect(num_steps=4).num_env_steps == 4  # the processes are well
    collector.close()
    wait_until_gone(pids, 5.0)


def test_a_number_that_is_not_finite_is_named() -> None:
    collector = collector_of(partial(envs_of, NaNEnv), max_ahead=0)
    with pytest.raises(NonFiniteError, match=r"worker 0 \(pid \d+\), during .* 5 rows: env 0, step 3: obs\[?.* = nan"):
        collector.collect(num_steps=5)
    collector.close()


def test_a_worker_that_dies_while_the_learner_updates() -> None:
    collector = collector_of(envs_of, 2)
    collector.collect(num_steps=2)
    pids = pids_of(collector)
    terminate(pids[1])
    wait_until_gone(pids[1:], 5.0)
    with pytest.raises(EnvError, match=rf"^worker 1 \(pid {pids[1]}\) was killed by SIGTERM during the collection of "):
        collect_often(collector, 2)  # what it had collected before counts
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
    text = r"^worker 0 \(pid \d+\) hung: the making of the envs took longer than step_timeout=0.5 seconds$"
    with pytest.raises(EnvError, match=text):
        collector_of(hang_to_make, step_timeout=0.5)


def first_hangs(path: str) -> Any:
    """Make envs, of which the first that are made hang in a step, and the others die in one."""
    return envs_of(fault="hang" if makes_file(path) else "kill", at=3, length=50)


@pytest.mark.parametrize("counts", [{"num_steps": 20}, {"num_episodes": 2}])
def test_a_dead_worker_is_found_while_another_one_hangs(counts: Any, tmp_path: Path) -> None:
    collector = collector_of(partial(first_hangs, str(tmp_path / "first")), 2)
    with pytest.raises(EnvError, match=r"^worker [01] \(pid \d+\) was killed by SIGKILL during the collection of "):
        collector.collect(**counts)  # would wait for the one that hangs as long as this test may take


def test_transitions_around_a_restart(tmp_path: Path) -> None:
    """An env fails in the third step of its first episode: two steps of it are kept, and it goes on with the next."""
    once = str(tmp_path / "once")
    collector = collector_of(partial(in_workers, fault="kill", at=3, once=once, length=4), num_envs=2, max_ahead=0)
    stats = [collector.collect(num_steps=4) for _ in range(6)]
    assert sum(each.num_env_steps - each.num_collected_steps for each in stats) == 2  # both envs of the process
    assert {int(n) for each in stats for n in each.lengths} == {4}, "the episodes that broke off are not counted"
    assert collector.num_env_restarts == 1
    buffer: Any = collector.buffer
    assert len(buffer) == 22
    batch = buffer.sample(600, n_step=3, gamma=1.0)
    steps = (batch.next_obs - batch.obs)[:, 1]
    assert (batch.next_obs[:, 0] == batch.obs[:, 0]).all(), "of the same episode"
    assert (batch.reward == steps).all()
    assert steps.unique().tolist() == [1.0, 2.0, 3.0]
    collector.close()


def test_a_start_that_was_interrupted_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = collector_of(envs_of, 2)
    call_all = collector._team.call_all
    for name in ("begin", "configure"):

        def interrupt(when: str, called: str, *arguments: Any, name: str = name, **options: Any) -> Any:
            if called == name:
                raise KeyboardInterrupt
            return call_all(when, called, *arguments, **options)

        monkeypatch.setattr(collector._team, "call_all", interrupt)
        with pytest.raises(KeyboardInterrupt):
            collector.collect(num_steps=4)
        monkeypatch.undo()
    assert collector.collect(num_steps=4).num_collected_steps == 4
    collector.close()


def nested() -> Any:
    return rl.make_vec(FaultyEnv, 2, backend="workers", num_workers=2)


NESTED = """
import os, signal
from tests.faults.test_async_faults import collector_of, nested, pids_of

def descendants(pid):
    children = open(f"/proc/{pid}/task/{pid}/children").read().split()
    return children + sum(map(descendants, children), [])

if __name__ == "__main__":
    collector = collector_of(nested, 1, 2)
    collector.collect(num_steps=20)
    print(*descendants(os.getpid()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc and /dev/shm")
def test_a_learner_that_is_killed_leaves_nothing() -> None:
    """No process, not of nested workers either, no shared memory, no temporary file."""
    shared = sorted(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as folder:  # a short path: it will hold a socket
        command, environment = [sys.executable, "-c", NESTED], {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == -signal.SIGKILL, done.stderr
        pids = [int(pid) for pid in done.stdout.split()]
        assert len(pids) >= 5  # fork servers, a worker of the learner, and two of that one
        wait_until_gone(pids, 10.0)
        assert os.listdir(folder) == []
    assert sorted(os.listdir("/dev/shm")) == shared


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_program_that_is_killed_before_its_first_worker_runs_leaves_no_folder() -> None:
    program = (
        "import os, signal; from rltrainer.processes.worker import make_context\n"
        "make_context('forkserver', 'x'); os.killpg(0, signal.SIGKILL)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMPDIR": folder}
        done = subprocess.run([sys.executable, "-c", program], env=environment, start_new_session=True, timeout=60)
        assert done.returncode == -signal.SIGKILL
        until = time.monotonic() + 10.0
        while os.listdir(folder) and time.monotonic() < until:
            time.sleep(0.05)
        assert os.listdir(folder) == []
