"""Collections by episodes: one reset for each, and none that waits forever."""

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import rltrainer as rl
from rltrainer.collect import faults
from rltrainer.envs.workers.worker_vector_env import WorkerVectorEnv
from rltrainer.errors import EnvError, ParamsError
from rltrainer.seeding import derive_seed
from tests.fakes import CountingEnv, counting_envs, replay_of, rollouts_of, tiny_actor_critic
from tests.unit.trainers.test_order_and_counts import on_policy_trainer


class StrictEnv(CountingEnv):
    """Does not like to be stepped after its end."""

    def step(self, action: Any) -> Any:
        assert self.step_count < self.length, "stepped after its end"
        return super().step(action)


def make(lengths: list[int], backend: str) -> Any:
    factories = [lambda length=length: StrictEnv(length) for length in lengths]
    if backend == "sync":
        todo = iter(factories)
        return rl.make_vec(lambda: next(todo)(), len(lengths), backend="sync", seed=1)
    return gym.vector.SyncVectorEnv(factories, autoreset_mode=AutoresetMode(backend))


def counts(envs: Any, name: str) -> list[int]:
    return list(envs.get_attr(name))


@pytest.mark.parametrize(("lengths", "num_episodes", "num_resets", "num_steps"), [
    ([5, 5, 5], 3, [1, 1, 1], [5, 5, 5]),
    ([2, 9, 4], 3, [1, 1, 1], [2, 9, 4]),
    ([2, 9], 5, [3, 2], [6, 18]),
    ([2, 9], 1, [1, 1], [2, 2]),  # an env without a quota is reset and stepped with the others, and not counted
])  # fmt: skip
def test_one_reset_per_episode_and_no_step_after_the_last(
    lengths: list[int], num_episodes: int, num_resets: list[int], num_steps: list[int]
) -> None:
    envs = make(lengths, "sync")
    one = rl.Collector(tiny_actor_critic(envs), envs)
    for k in range(1, 4):
        stats = one.collect(num_episodes=num_episodes, explore=False)
        assert (len(stats.lengths), stats.num_collected_steps) == (num_episodes, stats.lengths.sum())
        assert counts(envs, "num_resets") == [k * number for number in num_resets]
        assert counts(envs, "num_steps") == [k * number for number in num_steps]


def test_a_reset_just_before_is_enough() -> None:
    envs = make([5], "sync")
    one = rl.Collector(tiny_actor_critic(envs), envs)
    for first_episode in (False, True):
        one.reset(first_episode=first_episode)
        one.collect(num_episodes=1)
        assert counts(envs, "num_resets") == [1 + first_episode]
    one.collect(num_steps=2)  # resets, and is not fresh afterwards
    assert one.collect(num_episodes=1).lengths.tolist() == [5]
    assert counts(envs, "num_resets") == [4]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_gymnasiums_envs_are_not_reset_after_the_last_episode(mode: AutoresetMode) -> None:
    envs = make([4, 4], mode.value)
    one = rl.Collector(tiny_actor_critic(envs), envs)
    for k in range(1, 4):
        one.reset(first_episode=True)
        one.collect(num_episodes=2)
        assert counts(envs, "num_resets") == [k, k]


@pytest.mark.parametrize("backend", ["sync", *(mode.value for mode in AutoresetMode)])
def test_the_same_episodes_in_every_mode(backend: str) -> None:
    """Episodes past a quota use up no seeds, so collections by episodes agree where envs go on and where they rest."""
    envs = make([2, 9, 4], backend)
    buffer = rollouts_of(envs, 9)
    one = rl.Collector(tiny_actor_critic(envs), envs, buffer)
    one.adapter._clock.seed = 7
    # `CountingEnv` observes its seed. The first env has two episodes in each collection, the others one.
    first, second, third = ([derive_seed(7, n, k) % 100 for k in range(6)] for n in range(3))
    for k in range(3):
        one.collect(num_episodes=4)
        rollout = one.rollout()
        seeds = [list(dict.fromkeys(rollout.obs[rollout.valid[:, n], n, 0].tolist())) for n in range(3)]
        assert seeds == [first[2 * k : 2 * k + 2], [second[k]], [third[k]]]


def test_native_envs_are_reset_once_per_collection() -> None:
    envs = rl.make_vec("CartPole-v1", 4, backend="native", seed=1)
    calls: list[Any] = []
    reset = envs.env.reset
    envs.env.reset = lambda **options: calls.append(1) or reset(**options)  # type: ignore[attr-defined]
    one = rl.Collector(tiny_actor_critic(envs), envs)
    for k in range(1, 4):
        one.reset(first_episode=True)
        assert one.collect(num_episodes=4).num_collected_episodes == 4
        assert len(calls) == k


def test_workers_rest_too() -> None:
    envs, here = (
        rl.make_vec("CartPole-v1", 3, backend=backend, seed=1, **options)
        for backend, options in (("workers", {"num_workers": 2}), ("sync", {}))
    )
    policy = tiny_actor_critic(here)
    found, expected = (rl.Collector(policy, each) for each in (envs, here))
    for num_episodes in (3, 7, 2):
        a, b = (one.collect(num_episodes=num_episodes, explore=False) for one in (found, expected))
        assert a.lengths.tolist() == b.lengths.tolist()
        assert a.returns.tolist() == b.returns.tolist()
    assert found.adapter.state_dict() == expected.adapter.state_dict()
    envs.close()


def test_envs_that_rest_wait_for_a_reset() -> None:
    """Whoever steps the envs by hand afterwards is told, and does not look at a frozen observation for ever."""
    envs = make([2, 9], "sync")
    rl.Collector(tiny_actor_critic(envs), envs).collect(num_episodes=2)
    with pytest.raises(EnvError, match="env 1 must be reset before it is stepped"):
        envs.step(np.zeros(2, np.int64))
    envs.reset()
    assert envs.step(np.zeros(2, np.int64))[1].tolist() == [1.0, 1.0]


class Endless(CountingEnv):
    """An episode without end."""

    def __init__(self) -> None:
        super().__init__(length=10**9)


def test_a_limit_truncates_what_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    todo = iter([3, 10**9])
    envs = rl.make_vec(lambda: StrictEnv(next(todo)), 2, backend="sync", seed=1)
    buffer = replay_of(envs, 100)
    one = rl.Collector(tiny_actor_critic(envs), envs, buffer, max_episode_steps=7)
    stats = one.collect(num_episodes=4)
    assert sorted(stats.lengths.tolist()) == [3, 3, 7, 7]
    assert sorted(stats.returns.tolist()) == [3, 3, 7, 7]
    assert counts(envs, "num_resets") == [2, 2]
    text = "env 1: its episode was truncated after 7 steps (max_episode_steps); later ones are not named"
    assert [record.message for record in caplog.records] == [text]
    rollout = one.rollout()
    assert rollout.truncated.nonzero().tolist() == [[6, 1], [13, 1]]
    assert rollout.terminated.nonzero().tolist() == [[2, 0], [5, 0]]
    assert len(buffer) == 20
    sample = buffer.sample(500, n_step=10, gamma=1.0)
    # The successor is the episode's own: its number stays, its step goes on to 7 at most, and nothing terminates there.
    assert torch.equal(sample.obs[:, 0], sample.next_obs[:, 0])
    assert sample.next_obs[sample.truncated][:, 1].unique().tolist() == [7.0]
    assert sample.reward.max() == 7


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_limit_in_gymnasiums_envs(mode: AutoresetMode) -> None:
    envs = gym.vector.SyncVectorEnv([Endless, lambda: CountingEnv(length=3)], autoreset_mode=mode)
    stats = rl.Collector(tiny_actor_critic(envs), envs, max_episode_steps=4).collect(num_episodes=6)
    assert stats.lengths.tolist() == [3, 4, 3, 4, 3, 4]


def test_an_episode_that_ends_at_the_limit_is_not_truncated(caplog: pytest.LogCaptureFixture) -> None:
    envs = counting_envs(2, length=5)
    one = rl.Collector(tiny_actor_critic(envs), envs, rollouts_of(envs, 5), max_episode_steps=5)
    assert one.collect(num_episodes=2).lengths.tolist() == [5, 5]
    assert not one.rollout().truncated.any()
    assert caplog.records == []
    one.max_episode_steps = 2  # for whole episodes only
    assert one.collect(num_steps=10).lengths.tolist() == [5, 5]


def test_test_steps_keep_the_limit_and_reset_once_each() -> None:
    trainer, test_envs = on_policy_trainer(), rl.make_vec(Endless, 2, backend="sync", seed=1)
    collector = rl.Collector(trainer.algorithm.policy, test_envs, max_episode_steps=6)
    changes = {"test_collector": collector, "test_step_num_episodes": 2}
    params = rl.OnPolicyTrainerParams(**(vars(trainer.params) | changes))
    assert rl.OnPolicyTrainer(trainer.algorithm, params).run().best_score == 6.0
    assert counts(test_envs, "num_resets") == [3, 3]  # the initial test step and two epochs


def test_native_envs_keep_a_limit_for_one_episode_each() -> None:
    envs = rl.make_vec("CartPole-v1", 4, backend="native", seed=1)
    one = rl.Collector(tiny_actor_critic(envs), envs, max_episode_steps=3)
    assert one.collect(num_episodes=4).lengths.tolist() == [3] * 4
    assert one.collect(num_episodes=3).lengths.tolist() == [3] * 3
    with pytest.raises(ParamsError) as caught:
        one.collect(num_episodes=5)
    text = "Collector.max_episode_steps: must be None for 5 episodes in 4 envs that cannot be reset one by one; got 3"
    assert str(caught.value).startswith(text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let a look at the clock take `clock.step` seconds, and an episode be long from 10 steps and 5 seconds on."""
    for name, value in {"LONG_EPISODE": 10, "LONG_WAIT": 5.0, "LOOK_EVERY": 1}.items():
        monkeypatch.setattr(faults, name, value)

    def look() -> float:
        clock.now += clock.step
        return float(clock.now)

    clock = SimpleNamespace(now=0.0, step=1.0, monotonic=look)
    monkeypatch.setattr(faults, "time", clock)
    return clock


@pytest.mark.parametrize(("step", "num_steps"), [(1.0, 10), (0.25, 20)], ids=["steps later", "seconds later"])
def test_a_long_wait_is_said_once_and_the_collection_goes_on(
    clock: Any, step: float, num_steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock.step, todo = step, iter([3, 25])
    envs = rl.make_vec(lambda: CountingEnv(length=next(todo)), 2, backend="sync", seed=1)
    one = rl.Collector(tiny_actor_critic(envs), envs)
    with caplog.at_level(logging.WARNING, "rltrainer"):
        for _ in range(2):
            assert one.collect(num_episodes=2).lengths.tolist() == [3, 25]
    assert caplog.messages == [
        f"collect(num_episodes=...): env 1 is {num_steps} steps and {num_steps * step:.0f} seconds into an "
        "episode and still waits for its end. Give it a time limit: max_episode_steps=..., or "
        "gymnasium.wrappers.TimeLimit."
    ]


def test_a_batched_collector_warns_too_and_names_its_own_limit(clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    envs = WorkerVectorEnv([partial(CountingEnv, length=length) for length in (3, 25)], 1, num_workers=2)
    one = rl.BatchedCollector(tiny_actor_critic(envs), envs)
    with caplog.at_level(logging.WARNING, "rltrainer"):
        for _ in range(2):
            assert sorted(one.collect(num_episodes=2).lengths.tolist()) == [3, 25]
    (said,) = caplog.messages
    assert said.startswith("collect(num_episodes=...): env 1 is 10 steps and 10 seconds into an episode")
    assert "Give it a time limit: BatchedCollector(..., max_trajectory_length=...)" in said


def test_many_short_episodes_are_no_long_wait(clock: Any, caplog: pytest.LogCaptureFixture) -> None:
    envs = counting_envs(2, length=9)
    rl.Collector(tiny_actor_critic(envs), envs).collect(num_episodes=8)
    rl.Collector(tiny_actor_critic(envs), envs).collect(num_steps=100)
    assert caplog.records == []
