"""Collection by actors: which data is too old, what is on its way, what becomes of those that are lost."""

import contextlib
import logging
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.collect import CollectStats, ray_collector
from rltrainer.collect.async_rows import RowQueue, Rows
from rltrainer.errors import EnvError, MissingExtraError, ParamsError
from rltrainer.processes.ray_cluster import connected_ray
from tests.unit.collect.async_parts import Constant, pendulums, seven_training_steps, wide
from tests.unit.collect.fake_ray import FakeRay
from tests.unit.collect.test_async_collector import VERSION, assert_collects_as_collectors, parts_of

Make = Callable[..., Any]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_collector, "connected_ray", lambda owner: fake)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    return fake


@pytest.fixture
def make(ray: FakeRay) -> Iterator[Make]:
    """Return what makes collectors that are closed in the end."""
    with contextlib.ExitStack() as made:
        yield lambda *args, **options: made.enter_context(contextlib.closing(rl.RayCollector(*args, **options)))


def constant(num_envs: int = 2) -> tuple[Constant, Any]:
    """Return a policy that acts by its weights, and a buffer with the versions."""
    envs = wide()
    spaces = envs.single_observation_space, envs.single_action_space
    return Constant(*spaces), rl.RolloutBuffer(1, num_envs, *spaces, extra=VERSION)


def versions(collector: rl.RayCollector) -> list[list[int]]:
    return collector.rollout().extra["version"].tolist()


@pytest.mark.parametrize("kind", ["actor_critic", "recurrent", "replay"])
@pytest.mark.parametrize("max_ahead", [0, None, 3])
def test_actors_collect_what_collectors_do(make: Make, kind: str, max_ahead: int | None) -> None:
    make_envs, policy, buffer = parts_of(kind, 2)
    collector = make(policy, make_envs, 2, buffer(4), max_ahead=max_ahead)
    assert collector.num_envs == 4
    assert_collects_as_collectors(collector, make_envs, buffer, (1, 5, 20, 1, 7))
    assert collector.has_stale_data == (max_ahead != 0)


def test_each_version_is_one_object_and_none_is_sent_twice(make: Make, ray: FakeRay) -> None:
    policy, buffer = constant(3)
    collector = make(policy, wide, 3, buffer, max_ahead=0)
    for version in range(4):
        policy.set(version)
        collector.sync()
        collector.collect(num_steps=30)
        assert versions(collector) == [[version] * 3] * 10
        assert set(collector.rollout().action[..., 0].flatten().tolist()) == {version}
    assert ray.num_puts == 4


def test_at_most_two_collections_are_on_their_way(make: Make, ray: FakeRay) -> None:
    policy, buffer = constant()
    collector = make(policy, wide, 2, buffer, max_ahead=12)
    collector.collect(num_steps=12)
    assert [len(worker.calls) for worker in collector._team.workers] == [2, 2]
    assert [[call.num_rows for call in worker.calls] for worker in collector._team.workers] == [[6, 6]] * 2
    for _ in range(5):
        collector.collect(num_steps=12)
    assert {actor.most_open for actor in ray.actors} == {2}


@pytest.mark.parametrize("max_version_lag", [1, 2, 3])
def test_no_row_gets_too_old_where_max_ahead_leaves_it_open(make: Make, max_version_lag: int) -> None:
    policy, buffer = constant()
    collector = make(policy, wide, 2, buffer, max_version_lag=max_version_lag)
    for version in range(12):
        collector.sync()
        collector.collect(num_steps=6)
        oldest = min(map(min, versions(collector)))
        assert version - max_version_lag <= oldest <= version
        for worker in collector._team.workers:
            assert worker.queue.num_rows + sum(call.num_rows for call in worker.calls) <= 3 * max_version_lag
    assert collector.version_lag > 0
    assert collector.settings()["refused_env_steps"] == 0


def test_rows_of_old_weights_are_refused_and_counted(make: Make) -> None:
    """Eight rows of each of two envs are ahead when two versions come without a collection between."""
    policy, buffer = constant()
    collector = make(policy, wide, 2, buffer, max_version_lag=1, max_ahead=8)
    collector.collect(num_steps=4)
    assert versions(collector) == [[0, 0]] * 2
    collector.sync()
    collector.collect(num_steps=4)  # of version 0, one older than the newest
    assert versions(collector) == [[0, 0]] * 2
    assert not collector.rollout().starts.any()
    collector._team.settle(keeps=True)
    assert [worker.queue.num_rows for worker in collector._team.workers] == [8, 8]
    collector.sync()
    collector.sync()  # version 3: those of 0 and 1 are too old
    collector.collect(num_steps=4)
    assert versions(collector) == [[3, 3]] * 2
    assert collector.rollout().starts.all()  # no trajectory continues over the gap
    assert collector.settings()["refused_env_steps"] == 16
    assert collector.settings()["policy_version"] == 3
    collector.collect(num_steps=4)
    assert not collector.rollout().starts.any()


def test_rows_of_any_age_are_taken_where_no_limit_is_given(make: Make) -> None:
    policy, buffer = constant()
    collector = make(policy, wide, 2, buffer, max_version_lag=None)
    collector.collect(num_steps=4)
    for _ in range(3):
        collector.sync()
    collector.collect(num_steps=4)
    assert versions(collector) == [[0, 0]] * 2
    assert collector.version_lag == 3
    assert collector.settings()["refused_env_steps"] == 0


def test_without_any_lag_the_data_is_not_stale(make: Make) -> None:
    policy, buffer = constant()
    collector = make(policy, wide, 2, buffer, max_version_lag=0)
    assert not collector.has_stale_data
    algorithm = seven_training_steps(policy, collector)
    assert algorithm.versions == [{i} for i in range(7)]
    assert algorithm.actions == [{float(i)} for i in range(7)]


def test_trainers_get_data_of_the_version_before(make: Make) -> None:
    policy, buffer = constant()
    algorithm = seven_training_steps(policy, make(policy, wide, 2, buffer))
    assert all(i - 1 <= version <= i for i, each in enumerate(algorithm.versions) for version in each)


def test_a_lost_actor_is_replaced_and_counted(make: Make, ray: FakeRay) -> None:
    make_envs, policy, buffer = parts_of("replay", 2)
    collector = make(policy, make_envs, 2, buffer(4), max_ahead=0)
    collector.seed(7)
    collector.collect(num_steps=8)
    assert not any(collector.settings()[name] for name in ("actor_restarts", "refused_env_steps"))
    ray.actors[0].is_dead = True
    stats = collector.collect(num_steps=40)
    assert stats.num_env_steps == 40
    assert len(ray.actors) == 3
    assert collector.rollout().starts.tolist() == [True, True, False, False]
    assert collector.settings()["actor_restarts"] == 1
    assert collector.num_env_restarts == 2
    collector.collect(num_steps=8)
    assert not collector.rollout().starts.any()
    ray.actors[2].is_dead = True
    collector.collect(num_steps=8)
    assert collector.settings()["actor_restarts"] == 2
    assert collector.num_env_restarts == 4


@pytest.mark.parametrize("seed", [None, 3])
def test_the_next_actor_has_other_seeds_and_the_same_settings(make: Make, ray: FakeRay, seed: int | None) -> None:
    _, policy, _ = parts_of("actor_critic", 1)
    buffer = rl.RolloutBuffer(1, 2, policy.observation_space, policy.action_space, extra=VERSION)
    collector = make(policy, partial(pendulums, 2, seed=seed), 1, buffer, max_ahead=0)
    collector.seed(7)
    first = []
    for _ in range(3):
        collector.reset()
        collector.collect(num_steps=10)
        first.append(collector.rollout().obs.clone())
        ray.actors[-1].is_dead = True
        collector.sync()
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[1], first[2])
    assert versions(collector) == [[2, 2]] * 5  # the newest weights, and the buffer's column


def test_episodes_states_and_random_actions_survive_a_loss(make: Make, ray: FakeRay) -> None:
    make_envs, policy, buffer = parts_of("replay", 2)
    collector = make(policy, make_envs, 2, buffer(4), max_ahead=0)
    for call in (
        lambda: collector.collect(num_episodes=4),
        lambda: collector.collect_random(3),
        lambda: collector.reset(),
        lambda: collector.load_state_dict(collector.state_dict()),
    ):
        for worker in collector._team.workers:
            worker.actor.is_dead = True
        call()
        assert collector.collect(num_steps=8).num_env_steps == 8
    assert collector.settings()["actor_restarts"] == 8


def test_an_actor_that_hangs_counts_as_lost(make: Make, ray: FakeRay) -> None:
    policy, buffer = constant()
    collector = make(policy, wide, 2, buffer, call_timeout=5.0)
    collector.collect(num_steps=4)
    ray.actors[1].hangs = True
    for _ in range(4):
        collector.sync()
        assert collector.collect(num_steps=4).num_env_steps == 4
    assert collector.settings()["actor_restarts"] == 1
    assert ray.actors[1].is_dead


def test_actors_that_are_lost_again_and_again_end_the_run(make: Make, ray: FakeRay) -> None:
    policy, buffer = constant()
    collector = make(policy, wide, 2, buffer, max_restarts=2)
    collector.collect(num_steps=4)
    ray.actors[0].is_dead = ray.dies_at_birth = True
    with pytest.raises(EnvError) as caught:
        collector.reset()
    text = "lost after max_restarts=2 replacements in a row\nRayError: the actor died"
    assert str(caught.value) == f"actor 0, during the collection of 1 rows: {text}"
    assert len(ray.actors) == 4
    with pytest.raises(EnvError, match="RayCollector: its workers have ended, by close or by a failure; make a new"):
        collector.collect(num_steps=4)


def test_a_hanging_actor_is_named_with_the_limit(make: Make, ray: FakeRay) -> None:
    policy, buffer = constant()
    collector = make(policy, wide, 2, buffer, max_restarts=0, call_timeout=2.5)
    ray.actors[1].hangs = True
    text = "actor 1, during .*max_restarts=0 replacements in a row\nEnvError: no answer within call_timeout=2.5 seconds"
    with pytest.raises(EnvError, match=text):
        collector.collect(num_steps=4)


def refuse(number: int) -> Any:
    raise ValueError(f"no envs on node {number}")


def test_errors_of_envs_are_those_of_other_workers(make: Make) -> None:
    policy, buffer = constant()
    with pytest.raises(EnvError, match="actor 0, during the making of the envs: ValueError: no envs on node 3"):
        make(policy, partial(refuse, 3), 2, buffer)
    with pytest.raises(ParamsError, match="RayCollector.make_envs: must return a gymnasium VectorEnv; got"):
        make(policy, list, 2, buffer)
    with pytest.raises(ParamsError, match=r"RayCollector\.buffer\.num_envs: must be made for num_envs=1, those of all"):
        make(policy, wide, 1, buffer)


def test_ray_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    policy, _ = constant()
    with pytest.raises(MissingExtraError, match=r"RayCollector needs a package that is not installed: .*\[ray\]"):
        rl.RayCollector(policy, wide)


@pytest.mark.parametrize("wrong", [{"max_restarts": -1}, {"max_ahead": -1}, {"exploration": -1}, {"info_keys": 3}])
def test_no_cluster_is_started_for_a_wrong_argument(monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]) -> None:
    monkeypatch.setattr(ray_collector, "connected_ray", lambda owner: pytest.fail("started"))
    policy, _ = constant()
    with pytest.raises(ParamsError, match=f"RayCollector.{next(iter(wrong))}: must be "):
        rl.RayCollector(policy, wide, **wrong)


def test_a_program_without_a_cluster_gets_a_quiet_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("ray")
    calls: list[dict[str, Any]] = []
    fake.is_initialized, fake.init = lambda: bool(calls), lambda **options: calls.append(options)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)
    assert connected_ray("it") is connected_ray("it") is fake  # one that is there is taken
    assert calls == [{"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")


def test_resources_are_those_of_each_actor_and_too_many_are_a_warning(make: Make, ray: FakeRay) -> None:
    policy, _ = constant()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(policy, wide, 2, num_cpus=0.5, num_gpus=0.25)
        make(policy, wide, 4)
    assert ray.options[0] == {"num_cpus": 0.5, "num_gpus": 0.25}
    with pytest.warns(UserWarning, match="RayCollector.num_actors: some wait until the cluster has 6 CPUs"):
        make(policy, wide, 3, num_cpus=2.0)


def test_closing_lets_the_actors_close_their_envs(make: Make, ray: FakeRay) -> None:
    policy, buffer = constant()
    collector = make(policy, wide, 2, buffer)
    collector.collect(num_steps=4)
    collector.close()
    assert all(actor.program._envs.closed for actor in ray.actors)  # type: ignore[attr-defined]
    assert all(actor.is_dead for actor in ray.actors)
    other = make(policy, wide, 1)
    ray.is_there = False  # the user has shut Ray down: nothing may start it again
    other.close()
    assert not ray.actors[-1].is_dead


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_lost_actor_had_begun_comes_from_the_next_one(make: Make, ray: FakeRay, waits: bool) -> None:
    """Rows of the lost actor that wait are dropped, as they do not belong before those of the next one."""
    policy, buffer = constant()
    collector = make(policy, wide, 2, buffer, max_ahead=8)
    collector.collect(num_steps=4)
    assert collector._team.workers[0].calls
    if waits:
        collector._team.settle(keeps=True)
        assert [worker.queue.num_rows for worker in collector._team.workers] == [6, 6]
    ray.actors[0].is_dead = True
    assert collector.collect(num_steps=24).num_env_steps == 24
    assert collector.rollout().valid.all()
    obs = collector.rollout().obs[..., 0]
    assert collector.rollout().starts.tolist() == [True, False]
    assert (obs == obs[0]).all()  # the episode's own number: rows of two episodes would differ


def test_rows_that_are_left_of_a_portion_are_refused(make: Make) -> None:
    def rows(version: int) -> Rows:
        arrays: dict[str, Any] = {name: np.zeros((4, 1), bool) for name in ("terminated", "truncated")}
        arrays |= {"obs": np.arange(4.0)[:, None] + 10 * version, "action": np.zeros((4, 1)), "extra": {}}
        arrays |= {"reward": np.zeros((4, 1)), "valid": np.ones((4, 1), bool), "last_obs": np.zeros(1)}
        arrays |= {"final_obs": np.zeros(0), "final_index": np.zeros(0, np.int64), "starts": np.zeros(1, bool)}
        return Rows(arrays, CollectStats(4, 4, np.zeros(0), np.zeros(0, np.int64), 0.0, {}), version)

    queue = RowQueue()
    for version in range(3):
        queue.put(rows(version))
    assert queue.take(1).arrays["obs"].tolist() == [[0.0]]
    assert queue.refuse(0) == 0
    assert queue.refuse(2) == 7
    taken = queue.take(3)
    assert taken.arrays["obs"].flatten().tolist() == [20.0, 21.0, 22.0]
    assert taken.arrays["starts"].tolist() == [True]
    assert queue.take(1).arrays["starts"].tolist() == [False]
    assert queue.num_rows == 0


def test_a_forked_process_ends_no_actors_of_its_parent(make: Make, ray: FakeRay) -> None:
    policy, _ = constant()
    collector = make(policy, wide, 1)
    ray_collector.end_actors(list(collector._team.workers), os.getpid() + 1)
    assert not ray.actors[0].is_dead
