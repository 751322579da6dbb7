"""Batched inference: envs in worker processes that do not wait for each other."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.envs.workers.worker_vector_env import WorkerVectorEnv
from rltrainer.errors import CheckpointError, EnvError, NonFiniteError, ParamsError, SpaceError
from rltrainer.seeding import derive_seed
from tests.fakes import CountingEnv, tiny_actor_critic
from tests.unit.collect.test_masks import Strict
from tests.unit.collect.test_memory import Counts
from tests.unit.collect.uneven_envs import GatedEnv, GrowingEnv, PacedEnv

SEED = 5


@contextmanager
def envs_of(env: Any = CountingEnv, num_envs: int = 3) -> Iterator[Any]:
    """Open envs in a process each."""
    envs = rl.make_vec(env, num_envs, backend="workers", num_workers=num_envs, seed=SEED)
    try:
        yield envs
    finally:
        envs.close()


@pytest.fixture(scope="module")
def shared_envs() -> Iterator[Any]:
    """Envs for tests that hardly step them."""
    with envs_of() as envs:
        yield envs


def together(num_envs: int = 3) -> rl.InferenceParams:
    """Return what makes a batch wait for all envs, so that they step together."""
    return rl.InferenceParams(min_batch_size=num_envs)


@contextmanager
def different_envs(*factories: Any) -> Iterator[Any]:
    envs = WorkerVectorEnv(factories, SEED, num_workers=len(factories))
    try:
        yield envs
    finally:
        envs.close()


def batched(envs: Any, buffer: Any = None, policy: Any = None, **options: Any) -> rl.BatchedCollector:
    """Return a collector with a buffer of this class, or none."""
    policy = policy or tiny_actor_critic(envs)
    spaces = (envs.single_observation_space, envs.single_action_space)
    extra = {name: policy.columns[name] for name in options.pop("columns", ())}
    if buffer is rl.RolloutBuffer:
        buffer = rl.RolloutBuffer(2, envs.num_envs, *spaces, extra=extra)
    elif buffer is rl.ReplayBuffer:
        buffer = rl.ReplayBuffer(3000, *spaces, num_envs=envs.num_envs, seed=1, extra=extra)
    return rl.BatchedCollector(policy, envs, buffer, **options)


class Recorder(rl.ActorCritic):
    """Remembers how many envs it decided for at a time."""

    def decide(self, obs: Any, *rest: Any) -> rl.Decision:
        self.__dict__.setdefault("sizes", []).append(len(obs))
        return super().decide(obs, *rest)


def lists(rollout: rl.Rollout) -> list[list[tuple[Any, ...]]]:
    """Return the valid cells of each env in order."""
    columns = (rollout.obs, rollout.action, rollout.reward, rollout.next_obs, rollout.terminated, rollout.truncated)
    rows = [column.tolist() for column in columns]
    num_rows, num_envs = rollout.reward.shape
    return [[tuple(row[t][n] for row in rows) for t in range(num_rows) if rollout.valid[t, n]] for n in range(num_envs)]


# What is collected


@pytest.mark.parametrize("buffer", [rl.RolloutBuffer, rl.ReplayBuffer])
def test_an_envs_transitions_depend_on_its_seed_and_its_actions_only(buffer: Any) -> None:
    """A greedy policy chooses by the observation: each env's list is the lock-step collector's, as far as it goes."""
    envs = rl.make_vec(partial(PacedEnv, length=4), 3, backend="sync", seed=SEED)
    policy = tiny_actor_critic(envs)
    other = rl.Collector(policy, envs, rl.RolloutBuffer(60, 3, envs.single_observation_space, policy.action_space))
    other.collect(num_steps=180, explore=False)
    expected = lists(other.rollout())
    with envs_of(partial(PacedEnv, length=4)) as envs:
        one = batched(envs, buffer, policy)
        found: list[list[Any]] = [[], [], []]
        for _ in range(4):
            stats = one.collect(num_steps=20, explore=False)
            assert stats.num_env_steps == stats.num_collected_steps == 21  # a multiple of three
            for n, cells in enumerate(lists(one.rollout())):
                found[n] += cells
        assert sum(map(len, found)) == 84
        for n in range(3):
            assert found[n] == expected[n][: len(found[n])]
            seeds = [derive_seed(SEED, n, episode) % 100 for episode in range(len(found[n]) // 4)]
            assert [cell[0][0] for cell in found[n][::4]][: len(seeds)] == seeds


def test_a_fast_env_takes_more_steps() -> None:
    with different_envs(partial(PacedEnv, 0.0), partial(PacedEnv, 0.05)) as envs:
        one = batched(envs, rl.RolloutBuffer)
        one.collect(num_steps=60)
        rollout = one.rollout()
        fast, slow = rollout.valid.sum(0).tolist()
        assert fast + slow == 60
        assert fast > slow
        # It holds still, at what it saw last, in cells that are nothing.
        assert not rollout.valid[slow:, 1].any()
        assert (rollout.obs[slow:, 1] == rollout.last_obs[1]).all()
        assert rollout.reward[slow:, 1].tolist() == [0.0] * (fast - slow)
        assert not rollout.done[slow:, 1].any()
        assert bool(rollout.ends[slow - 1, 1])
        (before,) = (cells for n, cells in enumerate(lists(rollout)) if n == 1)
        one.collect(num_steps=60)
        after = lists(one.rollout())[1]
        if not before[-1][4]:
            assert after[0][0] == before[-1][3], "the next collection goes on there"


def test_four_sleeping_envs_hold_up_nobody(tmp_path: Path) -> None:
    """Eight envs, batches of four to six after 50 ms: four take all the steps while the others are busy."""
    gates = [tmp_path / "open" if n < 4 else tmp_path / "gate" for n in range(8)]
    gates[0].touch()
    with different_envs(*(partial(GatedEnv, str(gate)) for gate in gates)) as envs:
        policy = Recorder.for_envs(envs, hidden_sizes=(4,))
        inference = rl.InferenceParams(min_batch_size=4, max_batch_size=6, max_wait_time=0.05)
        one = batched(envs, rl.ReplayBuffer, policy, inference=inference)
        one.collect(num_steps=80)
        one.collect(num_steps=80)
        sizes = policy.sizes  # type: ignore[attr-defined]
        assert 4 in sizes
        assert set(sizes) <= {4, 5, 6}
        steps = one.adapter.num_steps.tolist()
        assert sum(steps) == 160
        assert max(steps[4:]) == 1, "their second step waits for the gate"
        (tmp_path / "gate").touch()
        one.collect(num_steps=80)
        one.collect(num_steps=80)
        assert min(one.adapter.num_steps[4:]) > 1


def test_episodes_by_quota() -> None:
    with envs_of(partial(CountingEnv, length=4)) as envs:
        one = batched(envs)
        for _ in range(2):
            one.reset(first_episode=True)
            stats = one.collect(num_episodes=7, explore=False)
            assert stats.lengths.tolist() == [4] * 7
            assert stats.returns.tolist() == [4.0] * 7
            assert (stats.num_env_steps, stats.num_collected_steps) == (28, 28)
        assert batched(envs).collect(num_episodes=2).num_collected_episodes == 2, "fewer than envs"
    with envs_of(GrowingEnv) as envs:  # a minimum waits for those that are left
        one = batched(envs, inference=together())
        assert sorted(one.collect(num_episodes=6).lengths.tolist()) == [1, 1, 1, 2, 2, 2]


# Replay buffers


def test_windows_never_cross_an_end_and_go_on_over_collections() -> None:
    with envs_of(partial(CountingEnv, length=7)) as envs:
        one = batched(envs, rl.ReplayBuffer)
        for _ in range(40):
            one.collect(num_steps=3)
        buffer: Any = one.buffer
        assert len(buffer) == 120
        batch = buffer.sample(6000, n_step=3, gamma=1.0)
        steps = (batch.next_obs - batch.obs)[:, 1]
        assert torch.equal(batch.next_obs[:, 0], batch.obs[:, 0]), "of one episode"
        assert torch.equal(batch.reward, steps)
        # Only an episode's last two cells, and each env's newest, have less than three steps before them.
        start = batch.obs[:, 1]
        short = {(seed, at) for seed, at in batch.obs[(steps < 3) & (start < 5)].tolist()}
        assert len(short) <= 2 * 3
        assert batch.terminated[start + steps == 7].all()


def test_an_env_that_sleeps_keeps_its_trace(tmp_path: Path) -> None:
    """While it sleeps whole collections pass without a cell of it; its next cell goes on from its last one."""
    gate, open_ = tmp_path / "gate", tmp_path / "open"
    open_.touch()
    with different_envs(partial(GatedEnv, str(gate)), partial(GatedEnv, str(open_))) as envs:
        one = batched(envs, rl.ReplayBuffer)
        for _ in range(20):
            one.collect(num_steps=2)
        gate.touch()
        while one.adapter.num_steps[0] < 4:
            one.collect(num_steps=2)
        buffer: Any = one.buffer
        batch = buffer.sample(4000, n_step=3, gamma=1.0)
        sleeper = batch.obs[:, 0] == derive_seed(SEED, 0, 0) % 100
        begin = sleeper & (batch.obs[:, 1] == 0)
        assert begin.any()
        assert batch.reward[begin].unique().tolist() == [3.0]


# Lengths of episodes


@pytest.mark.parametrize("rows", [1, 4, 12])
def test_short_episodes_are_dropped_and_counted(rows: int) -> None:
    """Of episodes of 1, 2, 3, 4 steps, the first two are too short; a replay buffer gets the others whole."""
    with envs_of(GrowingEnv, num_envs=2) as envs:
        one = batched(envs, rl.ReplayBuffer, min_trajectory_length=3)
        stats = [one.collect(num_steps=2 * rows) for _ in range(48 // rows)]
        lengths = np.concatenate([part.lengths for part in stats])
        assert set(lengths.tolist()) == {3, 4}
        assert sum(part.num_env_steps for part in stats) == 96
        # What is stored belongs to these, or to episodes that are long enough and not over.
        buffer: Any = one.buffer
        assert sum(part.num_collected_steps for part in stats) == len(buffer)
        assert 0 <= len(buffer) - lengths.sum() <= 2 * 3
        num_episodes = len(lengths) + one.num_dropped_episodes
        assert abs(one.num_dropped_episodes - num_episodes / 2) <= 2
        batch = buffer.sample(2000, n_step=4, gamma=1.0)
        first = batch.obs[:, 1] == 0
        assert batch.reward[first].min() >= 3
        assert torch.equal(batch.reward, (batch.next_obs - batch.obs)[:, 1])


def test_on_policy_unripe_episodes_are_left_out_of_a_rollout() -> None:
    """Rollouts of 3 rows of episodes of 5, of which those with 3 steps or more count."""
    with envs_of(partial(CountingEnv, length=5), num_envs=1) as envs:
        one = batched(envs, rl.RolloutBuffer, min_trajectory_length=3)
        seen = []
        for _ in range(5):
            stats = one.collect(num_steps=3)
            seen.append([int(cell[0][1]) for cell in lists(one.rollout())[0]] if stats.num_collected_steps else [])
        # Steps 0 1 2 | 3 4 0 | 1 2 3 | 4 0 1 | 2 3 4: 0 of the second and 0 1 of the fourth rollout come too early,
        # and when their episode is long enough those rollouts are gone.
        assert seen == [[0, 1, 2], [3, 4], [1, 2, 3], [4], [2, 3, 4]]
        assert one.num_dropped_episodes == 0


def test_dropped_episodes_use_up_no_quota_and_do_not_go_on_for_ever() -> None:
    with envs_of(GrowingEnv, num_envs=2) as envs:
        one = batched(envs, min_trajectory_length=3)
        assert sorted(one.collect(num_episodes=4).lengths.tolist()) == [3, 3, 4, 4]
        assert one.num_dropped_episodes == 4
    with envs_of(partial(CountingEnv, length=2), num_envs=1) as envs:
        with pytest.raises(EnvError) as caught:
            batched(envs, min_trajectory_length=3).collect(num_episodes=2)
        text = "episodes, and no other, were shorter than min_trajectory_length=3"
        assert str(caught.value) == f"BatchedCollector.collect: 1000 {text}"


def test_long_episodes_are_truncated_with_their_final_observation() -> None:
    with envs_of(partial(CountingEnv, length=1000)) as envs:
        one = batched(envs, rl.RolloutBuffer, max_trajectory_length=4)
        stats = one.collect(num_steps=60)
        assert set(stats.lengths.tolist()) == {4}
        rollout = one.rollout()
        assert torch.equal(rollout.truncated & rollout.valid, (rollout.obs[..., 1] == 3) & rollout.valid)
        assert not rollout.terminated.any()
        assert rollout.next_obs[rollout.truncated][:, 1].unique().tolist() == [4.0]
        assert len(rollout.obs[rollout.valid][:, 0].unique()) > 3, "the next episodes have seeds of their own"
    with envs_of(partial(CountingEnv, length=4)) as envs:  # that end by themselves
        one = batched(envs, rl.RolloutBuffer, max_trajectory_length=4, inference=together())
        one.collect(num_steps=60)
        assert one.rollout().terminated.sum() == 15
        assert not one.rollout().truncated.any()


# Memory, masks, Dict observations


@pytest.mark.parametrize("buffer", [rl.RolloutBuffer, rl.ReplayBuffer])
def test_every_env_has_its_own_memory(buffer: Any) -> None:
    with envs_of(partial(CountingEnv, length=5)) as envs:
        one = batched(envs, buffer, Counts.for_envs(envs), columns=("state", "asked", "twice"))
        for _ in range(4):
            one.collect(num_steps=21)
            rollout = one.rollout()
            valid, step = rollout.valid, rollout.obs[..., 1]
            # Asked as often as the episode has steps, and what it saw last.
            assert torch.equal(rollout.extra["state"][valid][:, 0], step[valid])
            assert torch.equal(rollout.extra["state"][valid][:, 1], (step - 1)[valid])
            assert torch.equal(rollout.extra["asked"][valid], (step + 1)[valid])
            assert torch.equal(rollout.extra["twice"][valid][:, 0], 2 * (step + 1)[valid])


def test_masks_in_dict_observations() -> None:
    with envs_of(Strict) as envs:
        one = batched(envs, rl.ReplayBuffer)
        one.collect(num_steps=30, random=True)
        one.collect(num_steps=30)
        one.collect(num_steps=30, explore=False)
        buffer: Any = one.buffer
        batch = buffer.sample(500)
        assert torch.equal(batch.action, batch.obs["action_mask"].long().argmax(1))
        assert torch.equal(batch.obs["counts"][:, 1] + 1, batch.next_obs["counts"][:, 1])
    with envs_of(partial(Strict, stuck=2)) as envs:
        text = r'^env \d, step 3: obs\["action_mask"\] allows no action. An episode must end where nothing can be done'
        with pytest.raises(EnvError, match=text):
            batched(envs, rl.RolloutBuffer).collect(num_steps=30)


# Trainers


def params(cls: Any, collector: Any, **options: Any) -> Any:
    options = {"max_epochs": 1, "epoch_num_steps": 96, "collection_step_num_env_steps": 48, **options}
    return cls(training_collector=collector, verbose=False, show_progress=False, seed=1, **options)


@pytest.mark.parametrize("batch_size", [16, None])
def test_ppo_trains(batch_size: int | None) -> None:
    with envs_of() as envs, envs_of() as test_envs:
        policy = tiny_actor_critic(envs, normalize_obs=True, normalize_reward=True)
        algorithm = rl.PPO(policy)
        collector, test = rl.BatchedCollector(policy, envs), rl.BatchedCollector(policy, test_envs)
        options = {"batch_size": batch_size, "test_collector": test, "test_step_num_episodes": 4}
        run = params(rl.OnPolicyTrainerParams, collector, **options)
        assert run.varies_in_length
        result = algorithm.run_training(run)
        assert (result.env_step, result.best_score) == (96, 5.0)
        assert result.gradient_step == (6 if batch_size else 2)
        assert policy.reward_normalizer is not None
        assert policy.reward_normalizer.moments.count == 999 + 96  # of random actions at first


def test_recurrent_ppo_trains_on_whole_rollouts() -> None:
    with envs_of() as envs:
        algorithm = rl.RecurrentPPO(rl.RecurrentActorCritic.for_envs(envs, hidden_sizes=(8,)))
        collector = rl.BatchedCollector(algorithm.policy, envs)
        with pytest.raises(ParamsError, match="^RecurrentPPO: rollouts must be of one length"):
            params(rl.OnPolicyTrainerParams, collector, batch_size=16).create_trainer(algorithm)
        result = algorithm.run_training(params(rl.OnPolicyTrainerParams, collector, batch_size=None))
        assert result.env_step == 96


def test_a_collection_of_which_nothing_is_kept(tmp_path: Path) -> None:
    with envs_of(partial(CountingEnv, length=2)) as envs:
        algorithm = rl.PPO(tiny_actor_critic(envs, normalize_obs=True))
        collector = batched(envs, policy=algorithm.policy, min_trajectory_length=3, inference=together())
        logger = rl.CSVLogger(str(tmp_path / "log.csv"))
        result = algorithm.run_training(params(rl.OnPolicyTrainerParams, collector, logger=logger))
        assert (result.env_step, result.gradient_step) == (96, 0)
        assert not collector.rollout().valid.any()
        assert collector.num_dropped_episodes == 48
        assert "num_dropped_episodes" in (tmp_path / "log.csv").read_text()


def test_updates_begin_when_the_first_episode_is_long_enough() -> None:
    with envs_of(partial(CountingEnv, length=8)) as envs:
        algorithm = rl.DQN(rl.QNetwork.for_envs(envs, hidden_sizes=(8,), normalize_obs=True))
        options = {"min_trajectory_length": 5, "inference": together()}
        collector = batched(envs, rl.ReplayBuffer, algorithm.policy, **options)
        options = {"collection_step_num_env_steps": 3, "initial_statistics_num_env_steps": 0}
        result = algorithm.run_training(params(rl.OffPolicyTrainerParams, collector, **options))
        assert result.env_step == 96
        assert result.gradient_step == len(collector.buffer or ()) == 96  # four whole episodes each


# State


def test_a_state_has_steps_and_dropped_episodes() -> None:
    with envs_of(GrowingEnv) as envs, envs_of(GrowingEnv) as others:
        one = batched(envs, rl.ReplayBuffer, min_trajectory_length=2)
        one.collect(num_steps=60)
        other = batched(others, rl.ReplayBuffer, one.policy, min_trajectory_length=2)
        other.load_state_dict(one.state_dict())
        other.buffer.load_state_dict(one.buffer.state_dict())  # type: ignore[union-attr]  # they have one
        assert other.num_dropped_episodes == one.num_dropped_episodes > 0
        assert other.adapter.num_steps.tolist() == one.adapter.num_steps.tolist()
        assert not other.needs_reset
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the length of an episode of these envs does not follow from its seed
            other.collect(num_steps=60)
        buffer: Any = other.buffer
        assert torch.equal((b := buffer.sample(500, n_step=3, gamma=1.0)).reward, (b.next_obs - b.obs)[:, 1])


def test_a_state_of_something_else_is_an_error(shared_envs: Any) -> None:
    one = batched(shared_envs)
    one.collect(num_steps=3)
    state = one.state_dict()
    lock_step = rl.Collector(one.policy, shared_envs).state_dict()
    with pytest.raises(CheckpointError, match=r"^collector.streams: missing in the saved state"):
        one.prepare_load(lock_step)
    text = r"^collector.streams.num_steps: expected the steps of 3 envs, found those of 2"
    with pytest.raises(CheckpointError, match=text):
        one.prepare_load(state | {"streams": {"num_steps": [1, 2], "num_dropped": 0}})
    with pytest.raises(CheckpointError, match=r"^collector.streams.num_dropped: expected a non-negative integer"):
        one.prepare_load(state | {"streams": {"num_steps": [1, 2, 3], "num_dropped": -1}})


# Bad input


def test_envs_that_cannot_be_stepped_alone() -> None:
    envs = rl.make_vec(CountingEnv, 3, backend="workers", num_workers=2)
    text = r"^BatchedCollector.envs: must have a worker process for each of its 3 envs; .*num_workers=3\); wrappers="
    with pytest.raises(ParamsError, match=text):
        batched(envs)
    envs.close()


class NanEnv(CountingEnv):
    """Its third step in the episode of env 1 rewards NaN, or observes it."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        if self.number == derive_seed(SEED, 1, 0) % 100 and self.step_count == 3:
            reward, obs = (math.nan, obs) if self.what == "reward" else (reward, obs * math.nan)
        return obs, reward, *rest


@pytest.mark.parametrize("buffer", [rl.RolloutBuffer, rl.ReplayBuffer, None])
@pytest.mark.parametrize("what", ["reward", "obs"])
def test_what_is_not_finite_is_named_by_env_and_its_own_step(buffer: Any, what: str) -> None:
    with envs_of(partial(NanEnv, what)) as envs:
        one = batched(envs, buffer)
        with pytest.raises(NonFiniteError, match=rf"^env 1, step 3: {what} = nan"):
            _ = [one.collect(num_steps=6) for _ in range(20)]
        if buffer is rl.ReplayBuffer:
            stored: Any = one.buffer
            stored.check_finite()
        assert one.needs_reset


class TwoAgents(CountingEnv):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward, reward]), *rest


def test_rewards_of_several_agents() -> None:
    with envs_of(TwoAgents) as envs, pytest.raises(SpaceError) as caught:
        batched(envs).collect(num_steps=3)
    text = "reward: shape (2,) is several agents'; no algorithm trains on them. Reduce them to one reward in a wrapper"
    assert text in str(caught.value)
