"""Batched inference under faults: a worker that dies, hangs or raises while others go on. Nothing is left behind."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.envs.workers.worker_vector_env import WorkerVectorEnv
from rltrainer.errors import EnvError
from tests.faults.envs import FaultyEnv
from tests.faults.test_worker_faults import SEED, pids_of, seed_of, wait_until_gone

RESTART = {"on_env_error": "restart"}


@contextmanager
def collector(
    num_envs: int = 3, options: Any = None, kind: Any = rl.ReplayBuffer, env: Any = FaultyEnv, **fault: Any
) -> Iterator[rl.BatchedCollector]:
    """Open a collector of `FaultyEnv`s, all alike, one in each process."""
    factories = [partial(env, **fault)] * num_envs
    envs = WorkerVectorEnv(factories, SEED, **{"num_workers": num_envs, **(options or {})})
    spaces = (envs.single_observation_space, envs.single_action_space)
    buffer = rl.RolloutBuffer(8, num_envs, *spaces) if kind is rl.RolloutBuffer else None
    if kind is rl.ReplayBuffer:
        buffer = rl.ReplayBuffer(2000, *spaces, num_envs=num_envs, seed=1)  # type: ignore[assignment]
    try:
        yield rl.BatchedCollector(rl.ActorCritic.for_envs(envs, hidden_sizes=(4,)), envs, buffer)
    finally:
        envs.close()


def workers_of(one: rl.BatchedCollector) -> WorkerVectorEnv:
    assert isinstance(one.envs, WorkerVectorEnv)
    return one.envs


def go_on(one: rl.BatchedCollector) -> None:
    while True:
        one.collect(num_steps=30)


@pytest.mark.parametrize("kind", [rl.ReplayBuffer, rl.RolloutBuffer, None])
@pytest.mark.parametrize(
    ("fault", "text"),
    [("value", "ValueError: the wheel is off"), ("two arguments", "TwoArgumentsError: this and that")],
)
def test_an_exception_arrives(fault: str, text: str, kind: Any) -> None:
    with collector(kind=kind, fault=fault, at=2, seed=seed_of(1, 0)) as one:
        with pytest.raises(EnvError) as caught:
            go_on(one)
        lines = str(caught.value).splitlines()
        assert lines[0] == f"env 1 failed during step 2: {text}"
        assert lines[2:4] == ["In the worker process:", "Traceback (most recent call last):"]
        assert "in fail" in str(caught.value)
        # The processes are well, and the next collection starts anew, beyond the episode that failed.
        assert one.needs_reset
        stats = one.collect(num_steps=60)
        assert stats.num_collected_steps == 60


@pytest.mark.parametrize("kind", [rl.ReplayBuffer, rl.RolloutBuffer])
@pytest.mark.parametrize(("at", "episode", "when"), [(2, 0, "step 2"), (0, 1, "reset after 6 steps")])
def test_a_hanging_env_is_named_while_others_go_on(kind: Any, at: int, episode: int, when: str) -> None:
    with collector(3, {"step_timeout": 1.0}, kind, fault="hang", at=at, seed=seed_of(1, episode)) as one:
        pids = pids_of(workers_of(one))
        with pytest.raises(EnvError) as caught:
            go_on(one)
        assert str(caught.value) == f"env 1 (pid {pids[1]}) hung: {when} took longer than step_timeout=1 seconds"
        wait_until_gone(pids, 5.0)


@pytest.mark.parametrize("fault", ["value", "kill", "hang"])
def test_an_env_is_restarted(fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Env 1 fails in the fourth step of its first episode: three steps of it are kept, and it goes on with the next."""
    options = {**RESTART, "step_timeout": 0.5 if fault == "hang" else None}
    once = str(tmp_path / "once")
    with collector(2, options, fault=fault, at=4, seed=seed_of(1, 0), once=once) as one:
        stats = []
        with caplog.at_level(logging.WARNING, "rltrainer"):
            while not stats or one.adapter.num_steps[1] < 14:
                stats.append(one.collect(num_steps=8))
        assert one.num_env_restarts == 1
        assert caplog.messages[0].startswith("restart 1 of 3: env 1 ")
        assert sum(part.num_env_steps - part.num_collected_steps for part in stats) == 1
        assert {int(n) for part in stats for n in part.lengths} == {6}, "the episode that broke off is not counted"
        buffer: Any = one.buffer
        batch = buffer.sample(20 * len(buffer), n_step=3, gamma=1.0)
        steps = (batch.next_obs - batch.obs)[:, 1]
        assert torch.equal(batch.next_obs[:, 0], batch.obs[:, 0]), "of the same episode"
        assert torch.equal(batch.reward, steps)
        broken = batch.obs[:, 0] == seed_of(1, 0) % 1000
        assert batch.next_obs[broken][:, 1].max() == 3
        next_one = batch.obs[:, 0] == seed_of(1, 1) % 1000
        assert batch.next_obs[next_one][:, 1].max() == 6


@pytest.mark.parametrize("fault", ["value", "kill"])
def test_a_reset_that_fails_is_done_again_with_the_same_seed(fault: str, tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    with collector(2, RESTART, rl.RolloutBuffer, fault=fault, at=0, seed=seed_of(1, 1), once=once) as one:
        seeds: list[float] = []
        while len(seeds) < 14:
            one.collect(num_steps=8)
            rollout = one.rollout()
            seeds += rollout.obs[:, 1, 0][rollout.valid[:, 1]].tolist()
            assert rollout.valid.sum() == 8
        assert seeds[:14] == [seed_of(1, 0) % 1000] * 6 + [seed_of(1, 1) % 1000] * 6 + [seed_of(1, 2) % 1000] * 2
        assert one.num_env_restarts == 1
