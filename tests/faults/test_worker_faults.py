"""Worker processes under faults: dead, hanging, raising; restarted; closed. Nothing is left behind."""

import gc
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.envs import EnvAdapter, make_vec
from rltrainer.envs.workers.worker_vector_env import WorkerVectorEnv
from rltrainer.errors import EnvError
from rltrainer.seeding import derive_seed
from tests.faults.envs import FaultyEnv, hang_to_make, make_often

SEED = 5
ONE = np.ones(1, np.int64)
RESTART = {"on_env_error": "restart"}


def workers(num_envs: int = 2, num_workers: int = 1, options: Any = None, **fault: Any) -> WorkerVectorEnv:
    """Return a vector env of `FaultyEnv`s, all alike."""
    envs = make_vec(
        partial(FaultyEnv, **fault), num_envs, backend="workers", num_workers=num_workers, seed=SEED, **options or {}
    )
    assert isinstance(envs, WorkerVectorEnv)
    return envs


def seed_of(n: int, episode: int) -> int:
    return derive_seed(SEED, n, episode)


def pids_of(envs: WorkerVectorEnv) -> list[int]:
    return [worker.process.pid for worker in envs.group.workers]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def terminate(pid: int) -> None:
    """Send SIGTERM to a worker, which ends by it: a worker leaves it to a parent that handles it.

    Nobody does here; pygame does, in its way, once an env was rendered in this process.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(pid, signal.SIGTERM)


def wait_until_gone(pids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, pids))


# Exceptions


@pytest.mark.parametrize(("fault", "text"), [
    ("value", "ValueError: the wheel is off"), ("two arguments", "TwoArgumentsError: this and that"),
    ("unpicklable", "UnpicklableError: no way out"), ("silent", "SilentError: (the exception's __str__ failed)"),
    ("sys.exit", "SystemExit: 3"), ("interrupt", "KeyboardInterrupt: "),
])  # fmt: skip
def test_an_exception_arrives(fault: str, text: str) -> None:
    with closing(workers(num_envs=3, at=2, fault=fault, seed=seed_of(1, 0))) as envs:
        envs.reset()
        envs.step(np.ones(3))
        with pytest.raises(EnvError) as caught:
            envs.step(np.ones(3))
        lines = str(caught.value).splitlines()
        assert lines[0] == f"env 1 failed during step 2: {text}"
        assert lines[2:4] == ["In the worker process:", "Traceback (most recent call last):"]
        assert "in fail" in str(caught.value)
        # The process is well: all envs can go on from a reset.
        assert envs.reset(seed=[1, 2, 3])[0].tolist() == [[1, 0], [2, 0], [3, 0]]
        assert envs.step(np.ones(3))[0].tolist() == [[1, 1], [2, 1], [3, 1]]


def test_an_exception_outside_of_a_step() -> None:
    with closing(workers(at=0, fault="value", seed=seed_of(1, 0))) as envs:
        with pytest.raises(EnvError, match="^env 1 failed during reset after 0 steps: ValueError: the wheel is off\n"):
            envs.reset()
        with pytest.raises(EnvError, match=r"^env 0 failed during call\('wheels'\): AttributeError: "):
            envs.call("wheels")


# Deaths


@pytest.mark.parametrize(("fault", "how"), [("kill", "was killed by SIGKILL"), ("os._exit", "exited with code 7")])
def test_a_dead_worker(fault: str, how: str) -> None:
    with closing(workers(num_workers=2, at=3, fault=fault, seed=seed_of(1, 0))) as envs:
        pids = pids_of(envs)
        envs.reset()
        envs.step(np.ones(2))
        envs.step(np.ones(2))
        started = time.monotonic()
        with pytest.raises(EnvError) as caught:
            envs.step(np.ones(2))
        assert time.monotonic() - started < 2.0  # a second, and half a second's grace for the other worker
        assert str(caught.value) == f"env 1 (pid {pids[1]}) {how} during step 3"
        wait_until_gone(pids, 5.0)
        with pytest.raises(EnvError, match="its workers have ended, by close or by a failure; make a new one"):
            envs.reset()


def test_a_dead_worker_of_several_envs_names_the_one_it_was_in() -> None:
    with closing(workers(num_envs=3, at=1, fault="kill", seed=seed_of(1, 0))) as envs:
        (pid,) = pids_of(envs)
        envs.reset()
        with pytest.raises(EnvError) as caught:
            envs.step(np.ones(3))
        assert str(caught.value) == f"envs 0, 1, 2 (pid {pid}) were killed by SIGKILL during step 1, in env 1"


def test_a_worker_that_dies_between_steps() -> None:
    with closing(workers(num_envs=1)) as envs:
        (pid,) = pids_of(envs)
        envs.reset()
        terminate(pid)
        wait_until_gone([pid], 5.0)
        with pytest.raises(EnvError, match=rf"^env 0 \(pid {pid}\) was killed by SIGTERM during step 1$"):
            envs.step(ONE)


def test_a_dead_worker_is_found_while_another_one_is_busy() -> None:
    factories = [partial(FaultyEnv, "hang"), partial(FaultyEnv, "kill")]
    with closing(WorkerVectorEnv(factories, num_workers=2)) as envs:
        envs.reset()
        started = time.monotonic()
        with pytest.raises(EnvError, match=r"^env 1 \(pid \d+\) was killed by SIGKILL during step 1$"):
            envs.step(np.ones(2))
        assert time.monotonic() - started < 4.0  # a second, and the end of a worker that hangs


def test_a_worker_that_dies_while_its_envs_are_made(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EnvError, match=r"^env 0 \(pid \d+\) exited with code 7 during the making of the envs"):
        make_vec(partial(os._exit, 7), 1, backend="workers")


# Hangs


def step_twice(envs: WorkerVectorEnv) -> None:
    envs.reset()
    envs.step(np.ones(envs.num_envs))
    envs.step(np.ones(envs.num_envs))


@pytest.mark.parametrize(("at", "when"), [(2, "step 2"), (0, "reset after 0 steps")])
def test_a_hanging_env(at: int, when: str) -> None:
    with closing(workers(3, 2, {"step_timeout": 2.0}, fault="hang", at=at, seed=seed_of(1, 0))) as envs:
        pids = pids_of(envs)
        started = time.monotonic()
        with pytest.raises(EnvError) as caught:
            step_twice(envs)
        assert time.monotonic() - started < 5.0
        expected = f"env 1 (pid {pids[0]}) hung: {when} took longer than step_timeout=2 seconds"
        assert str(caught.value) == expected
        wait_until_gone(pids, 5.0)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_factory_that_hangs(num_workers: int) -> None:
    factories = [FaultyEnv, hang_to_make, FaultyEnv]
    started = time.monotonic()
    text = r"^env 1 \(pid \d+\) hung: the making of the envs took longer than step_timeout=0"
    with pytest.raises(EnvError, match=text):
        WorkerVectorEnv(factories, num_workers=num_workers, step_timeout=0.5)
    assert time.monotonic() - started < 5.0


class AlarmTimeoutError(TimeoutError):
    """What a user raises to end what takes too long."""


@contextmanager
def alarm(error: BaseException, seconds: float = 0.1) -> Iterator[None]:
    """Raise an error from the handler of a signal, while something is waited for."""

    def handler(number: int, frame: Any) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", [AlarmTimeoutError, ConnectionResetError, EOFError, KeyboardInterrupt, OSError])
@pytest.mark.parametrize("options", [{}, {"step_timeout": 60.0}, RESTART])
def test_what_a_users_signal_handler_raises_arrives(kind: Any, options: Any) -> None:
    with closing(workers(2, 2, options, fault="hang", seed=seed_of(1, 0))) as envs:
        adapter = EnvAdapter(envs)
        adapter.reset()
        mine = kind("mine")
        with pytest.raises(kind) as caught, alarm(mine):
            adapter.step(np.ones(2, np.int64))
        assert caught.value is mine
        envs.group.end(grace=0.0)


def test_an_argument_that_cannot_travel_leaves_the_workers_usable() -> None:
    with closing(workers()) as envs:
        envs.reset(seed=[1, 2])
        with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
            envs.call("has_wrapper_attr", lambda: None)
        assert envs.step(np.ones(2))[0].tolist() == [[1, 1], [2, 1]]


# Restarts


def played(adapter: EnvAdapter, num_rows: int) -> list[list[tuple[Any, ...]]]:
    """Reset and step; return each env's cells as (obs, reward, next_obs, terminated, truncated, valid)."""
    cells: list[list[tuple[Any, ...]]] = [[] for _ in range(adapter.num_envs)]
    adapter.reset()
    for _ in range(num_rows):
        step = adapter.step(np.ones(adapter.num_envs, np.int64))
        for n in range(adapter.num_envs):
            valid = step.valid is None or bool(step.valid[n])
            ends = bool(step.terminated[n]), bool(step.truncated[n])
            cells[n].append((adapter.obs[n].tolist(), float(step.reward[n]), step.next_obs[n].tolist(), *ends, valid))
        adapter.advance()
    return cells


def expected(n: int, episodes: list[tuple[int, int]], broken_at: int | None = None) -> list[tuple[Any, ...]]:
    """Cells of episodes, given as (episode, length); the first breaks off after `broken_at` steps, the others end."""
    cells: list[tuple[Any, ...]] = []
    for episode, length in episodes:
        number = float(seed_of(n, episode) % 1000)
        is_cut = broken_at is not None and not cells
        for step in range(broken_at if is_cut and broken_at is not None else length):
            ended = step + 1 == length and not is_cut
            cells.append(([number, step], 1.0, [number, step + 1.0], ended, False, True))
        if is_cut:
            cells.append(([number, broken_at], 0.0, [number, broken_at], False, True, False))
    return cells


@pytest.mark.parametrize("fault", ["value", "sys.exit", "kill", "hang"])
def test_the_process_of_a_failed_env_is_restarted(fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {**RESTART, "step_timeout": 0.5 if fault == "hang" else None}
    with closing(workers(4, 2, options, fault=fault, at=3, seed=seed_of(2, 0), once=str(tmp_path / "once"))) as envs:
        adapter = EnvAdapter(envs)
        pids = pids_of(envs)
        with caplog.at_level(logging.WARNING, "rltrainer"):
            cells = played(adapter, 9)
        for n in range(4):  # envs 2 and 3 share a process
            assert cells[n] == expected(n, [(0, 6), (1, 6)], broken_at=2 if n >= 2 else None)[:9]
        assert envs.num_restarts == 1
        assert caplog.messages[0].startswith("restart 1 of 3: env")
        assert "step 3" in caplog.messages[0]
        assert pids_of(envs)[0] == pids[0]
        wait_until_gone(pids[1:], 5.0)


def test_a_reset_that_kills_is_done_again(tmp_path: Path) -> None:
    """Env 0 dies in its second reset; env 1, in the middle of an episode, breaks off in the step after."""
    lengths = [2, 5]
    factories = [partial(FaultyEnv, "kill", 0, seed_of(n, 1), str(tmp_path / "once"), lengths[n]) for n in range(2)]
    with closing(WorkerVectorEnv(factories, SEED, num_workers=1, on_env_error="restart")) as envs:
        adapter = EnvAdapter(envs)
        cells = played(adapter, 6)
        assert cells[0] == expected(0, [(0, 2), (1, 2), (2, 2)])
        assert cells[1] == expected(1, [(0, 5), (1, 5)], broken_at=2)[:6]
        assert envs.num_restarts == 1


@pytest.mark.parametrize("fault", ["value", "kill"])
@pytest.mark.parametrize("at", [0, 2])
def test_a_crash_loop_stops(fault: str, at: int) -> None:
    with closing(workers(2, 1, {**RESTART, "max_restarts": 2}, fault=fault, at=at)) as envs:
        adapter = EnvAdapter(envs)
        with pytest.raises(EnvError, match=r"\(after 2 restarts; max_restarts=2\)$"):
            played(adapter, 20)
        assert envs.num_restarts == 2
        assert envs.group.workers == []


def often(tmp_path: Path, failures: tuple[str, ...], fault: str, max_restarts: int = 3) -> WorkerVectorEnv:
    """Return an env that fails in its third step, and then as often as said while it is made anew."""
    once = str(tmp_path / "once")
    make = partial(make_often, str(tmp_path / "makings"), failures, fault=fault, at=3, seed=seed_of(0, 0), once=once)
    options = {"step_timeout": 0.5} if "hang" in (fault, *failures) else {}
    return WorkerVectorEnv([make], SEED, on_env_error="restart", max_restarts=max_restarts, **options)


@pytest.mark.parametrize("fault", ["value", "kill"])
@pytest.mark.parametrize("failures", [("kill",), ("value", "kill"), ("os._exit", "value"), ("hang",), ("sys.exit",)])
def test_what_fails_while_it_is_restarted_is_forgiven_too(
    fault: str, failures: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(often(tmp_path, failures, fault)) as envs:
        adapter = EnvAdapter(envs)
        with caplog.at_level(logging.WARNING, "rltrainer"):
            cells = played(adapter, 9)
        assert cells[0] == expected(0, [(0, 6), (1, 6)], broken_at=2)[:9]
        assert envs.num_restarts == len(caplog.messages) == 1 + len(failures)
        assert all(f"restart {i + 1} of 3: env 0" in text for i, text in enumerate(caplog.messages))


@pytest.mark.parametrize("fault", ["value", "kill"])
def test_what_never_stops_failing_while_it_is_restarted_is_not_forgiven_for_ever(fault: str, tmp_path: Path) -> None:
    with closing(often(tmp_path, ("kill",) * 9, fault, max_restarts=2)) as envs:
        adapter = EnvAdapter(envs)
        text = r"was killed by SIGKILL during the making of .*\n\(after 2 restarts; max_restarts=2\)$"
        with pytest.raises(EnvError, match=text):
            played(adapter, 9)
        assert envs.group.workers == []


def test_the_other_envs_of_a_worker_that_dies_in_a_restart_break_off_too(tmp_path: Path) -> None:
    make = partial(make_often, str(tmp_path / "makings"), ("sys.exit",), length=6)  # the making of env 1
    fails = partial(FaultyEnv, "value", 3, seed_of(0, 0), str(tmp_path / "once"))
    with closing(WorkerVectorEnv([fails, make], SEED, num_workers=1, on_env_error="restart")) as envs:
        adapter = EnvAdapter(envs)
        adapter.reset()
        os.kill(pids_of(envs)[0], signal.SIGKILL)  # both are made anew, and env 1 fails in that
        cells = played(adapter, 9)
        assert cells[0] == expected(0, [(0, 6), (1, 6)], broken_at=2)[:9]
        assert cells[1] == expected(1, [(0, 6), (1, 6)], broken_at=2)[:9]
        assert envs.num_restarts == 3


def restarting_collector() -> tuple[WorkerVectorEnv, rl.Collector]:
    """Env 0 has episodes of 4 steps; env 1 fails in the third step of its first one."""
    envs = workers(2, 2, RESTART, fault="value", at=3, seed=seed_of(1, 0), length=4)
    return envs, rl.Collector(rl.ActorCritic.for_envs(envs, hidden_sizes=(4,)), envs)


def test_what_a_rollout_holds_of_a_restarted_env() -> None:
    envs, collector = restarting_collector()
    with closing(envs):
        collector.attach_buffer(rl.RolloutBuffer(8, 2, envs.single_observation_space, envs.single_action_space))
        stats = collector.collect(num_steps=16)
        assert (stats.num_collected_steps, stats.num_env_steps) == (15, 16)
        # Env 0: episodes of 4, 4. Env 1: broken off after 2, then 4, then 1 of 4: the first is not counted.
        assert stats.lengths.tolist() == [4, 4, 4]
        assert stats.returns.tolist() == [4.0, 4.0, 4.0]
        rollout = collector.rollout()
        assert rollout.valid[:, 1].tolist() == [True, True, False, True, True, True, True, True]
        # The trace ends before the cell that holds no transition, and with it.
        assert rollout.ends[:, 1].tolist() == [False, True, True, False, False, False, True, False]


@pytest.mark.parametrize("rows", [8, 4, 2, 1])
def test_what_a_replay_buffer_holds_of_a_restarted_env(rows: int) -> None:
    envs, collector = restarting_collector()
    with closing(envs):
        buffer = rl.ReplayBuffer(40, envs.single_observation_space, envs.single_action_space, 2, seed=1)
        collector.attach_buffer(buffer)
        lengths = [collector.collect(num_steps=2 * rows).lengths for _ in range(8 // rows)]
        assert np.concatenate(lengths).tolist() == [4, 4, 4]
        assert len(buffer) == 15
        batch = buffer.sample(300, n_step=3, gamma=1.0)
        assert (batch.next_obs[:, 0] == batch.obs[:, 0]).all()  # of the same episode
        steps = (batch.next_obs - batch.obs)[:, 1]
        assert (batch.reward == steps).all()
        # From step 1 of the episode that broke off: one step is left of it.
        of_cut = (batch.obs[:, 0] == seed_of(1, 0) % 1000) & (batch.obs[:, 1] == 1)
        assert steps[of_cut].unique().tolist() == [1.0]
        assert steps.unique().tolist() == [1.0, 2.0, 3.0]


def test_a_quota_of_episodes_is_filled_without_the_cut_one() -> None:
    with closing(workers(1, 1, RESTART, fault="value", at=3, seed=seed_of(0, 0), length=4)) as envs:
        collector = rl.Collector(rl.ActorCritic.for_envs(envs, hidden_sizes=(4,)), envs)
        stats = collector.collect(num_episodes=2)
        assert stats.lengths.tolist() == [4, 4]
        assert stats.returns.tolist() == [4.0, 4.0]


# The end


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts what is in /proc and /dev/shm")
def test_nothing_is_left_behind() -> None:
    make_vec(FaultyEnv, 2, backend="workers", num_workers=2).close()  # starts what multiprocessing keeps
    files, shared = descriptors(), sorted(os.listdir("/dev/shm"))
    for fault in (None, "value", "kill", "unclosed"):
        envs = workers(2, 2, fault=None if fault == "unclosed" else fault)
        pids = pids_of(envs)
        assert sorted(os.listdir("/dev/shm")) == shared
        envs.reset()
        with suppress(EnvError) if fault else nullcontext():
            envs.step(np.ones(2))
        for _ in range(2 if fault != "unclosed" else 0):
            envs.close()
        del envs
        gc.collect()
        wait_until_gone(pids, 5.0)
    assert descriptors() == files
    assert sorted(os.listdir("/dev/shm")) == shared


PROGRAM = """
import os, signal, sys
from functools import partial
import numpy as np
from rltrainer.envs import make_vec
from tests.faults.envs import FaultyEnv


def run(how, method):
    fault = "hang" if how == "killed in a step" else None
    envs = make_vec(partial(FaultyEnv, fault), 2, backend="workers", num_workers=2, start_method=method)
    envs.reset()
    pids = [worker.process.pid for worker in envs.group.workers]
    print(how, method, os.getpid(), *pids, sep=",", flush=True)
    if how == "raise":
        raise ValueError("the user's")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    envs.step(np.ones(2))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        if not (pid := os.fork()):
            run(*argument.split(","))
            sys.exit(0)
        if "in a step" not in argument:
            os.waitpid(pid, 0)
"""


def test_workers_end_with_their_parent() -> None:
    cases = ["exit,fork", "raise,fork", "killed,fork", "killed in a step,fork", "killed in a step,forkserver"]
    command = [sys.executable, "-Wignore", "-c", PROGRAM, *cases]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for case in cases:
            how, method, parent, *pids = program.stdout.readline().strip().split(",")
            assert [how, method] == case.split(",")
            if how == "killed in a step":
                os.kill(int(parent), signal.SIGKILL)
            assert len(pids) == 2
            wait_until_gone(list(map(int, pids)), 8.0)


def test_an_interrupt_leaves_the_workers_usable() -> None:
    """Ctrl-C reaches parent and workers; the parent's step breaks off, and the answers are waited for later."""
    with closing(workers(2, 2)) as envs:
        envs.reset()
        receive = envs.group.workers[0].receive

        def interrupted(watch: Any = None) -> Any:
            raise KeyboardInterrupt

        envs.group.workers[0].receive = interrupted  # type: ignore[method-assign]  # on purpose
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.ones(2))
        for pid in pids_of(envs):
            os.kill(pid, signal.SIGINT)
        envs.group.workers[0].receive = receive  # type: ignore[method-assign]  # as it was
        assert envs.reset(seed=[1, 2])[0].tolist() == [[1, 0], [2, 0]]
        assert envs.step(np.ones(2))[0].tolist() == [[1, 1], [2, 1]]
