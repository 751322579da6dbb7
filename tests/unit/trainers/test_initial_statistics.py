"""Normalisers know their data before the first update: statistics from random actions, apart from the run."""

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from tests.fakes import CountingEnv, ScriptedOnPolicy, counting_envs, replay_of, tiny_actor_critic

NORMALIZES = {"normalize_obs": True, "normalize_reward": True}


class Fixed(gym.Env[Any, Any]):
    """Observes where its own generator put it, shifted far from 0; one episode is ten steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reward: float = 1.0) -> None:
        self.reward = reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        return self._obs(), self.reward * (1 + self.num_steps % 2), False, self.num_steps >= 10, {}

    def _obs(self) -> Any:
        return (100 + self.np_random.normal(size=2)).astype(np.float32)


def trainer(
    num_statistics: int = 1000, seed: int | None = 5, envs: Any = None, policy_options: Any = NORMALIZES, **options: Any
) -> rl.OnPolicyTrainer:
    """Return a trainer that learns nothing but statistics, in two envs."""
    rl.seed(3)
    envs = rl.make_vec(Fixed, 2, backend="sync") if envs is None else envs
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=(4,), **policy_options), rl.PPOParams(lr=1e-30))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        initial_statistics_num_env_steps=num_statistics, seed=seed,
        **({"max_epochs": 1, "epoch_num_steps": 40, "collection_step_num_env_steps": 20, "batch_size": None,
            "show_progress": False, "verbose": False} | options),
    )  # fmt: skip
    return rl.OnPolicyTrainer(algorithm, params)


def first_rollout(one: rl.OnPolicyTrainer) -> tuple[rl.Rollout, float]:
    """Return what the first training step collected, and what its update knew of the observations' mean."""
    seen: list[Any] = []
    update = one.algorithm.update

    def note(rollout: rl.Rollout, batch_size: int | None, repeat: int) -> rl.UpdateResult:
        mean = float(one.algorithm.policy.obs_normalizer.moments["0"].mean[0])
        clone = {name: getattr(rollout, name).clone() for name in ("obs", "action", "reward", "starts")}
        seen.append((clone, mean))
        return update(rollout, batch_size, repeat)

    object.__setattr__(one.algorithm, "update", note)
    one.run()
    return seen[0]


def test_the_first_update_knows_where_the_data_lies() -> None:
    assert first_rollout(trainer(0))[1] == 0.0
    assert first_rollout(trainer())[1] == pytest.approx(100, abs=0.3)


def test_the_same_statistics_without_a_trainer() -> None:
    one = trainer()
    collector, moments = one.params.training_collector, one.algorithm.policy.obs_normalizer.moments["0"]
    one.algorithm.observe(collector.collect_random(num_rows=50))
    assert moments.count == 100
    assert moments.mean.tolist() == pytest.approx([100, 100], abs=0.4)
    assert first_rollout(one)[1] == pytest.approx(float(moments.mean[0]), abs=0.4)  # and the run takes no others
    assert moments.count == 100 + 40


@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("backend", ["sync", *(mode.value for mode in gym.vector.AutoresetMode)])
def test_envs_actions_and_buffers_go_on_as_if_nothing_had_been(backend: str, seed: int | None) -> None:
    def collected(num_statistics: int) -> list[torch.Tensor]:
        if backend == "sync":
            envs: Any = rl.make_vec(Fixed, 2, backend="sync")
        else:
            envs = gym.vector.SyncVectorEnv([Fixed] * 2, autoreset_mode=gym.vector.AutoresetMode(backend))
        rl.seed(3)
        policy = rl.QNetwork.for_envs(envs, hidden_sizes=(4,), normalize_obs=True)
        collector = rl.Collector(policy, envs, replay_of(envs, 100))
        params = rl.OffPolicyTrainerParams(
            training_collector=collector, initial_statistics_num_env_steps=num_statistics, warmup_num_env_steps=60,
            max_epochs=1, epoch_num_steps=60, collection_step_num_env_steps=2, seed=seed, show_progress=False,
            verbose=False,
        )  # fmt: skip
        result = rl.OffPolicyTrainer(rl.DQN(policy), params).run()
        stats = result.epochs[0].collect_stats
        assert stats is not None
        assert (result.env_step, stats.num_env_steps, len(stats.returns)) == (60, 60, 6)
        assert len(collector.buffer) == 60  # type: ignore[arg-type]  # it has one
        state = collector.buffer.sample(50)  # type: ignore[union-attr]
        return [state.obs, state.action, state.reward, collector.generator.get_state(), torch.rand(3)]

    for one, other in zip(collected(1000), collected(0), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("num", "num_envs", "expected"), [(1000, 3, 999), (7, 2, 6), (1000, 1, 1000), (1, 2, 0)])
def test_at_most_so_many_env_steps(num: int, num_envs: int, expected: int) -> None:
    one = trainer(num, envs=counting_envs(num_envs))
    one.reset()
    assert int(one.algorithm.policy.obs_normalizer.moments["0"].count) == expected
    assert one.env_step == 0


@pytest.mark.parametrize("backend", ["native", "sync"])
def test_cells_of_resets_count_too(backend: str) -> None:
    envs = rl.make_vec("CartPole-v1", 8, backend=backend, seed=1)
    one = trainer(1000, envs=envs)
    one.reset()
    count = int(one.algorithm.policy.obs_normalizer.moments["0"].count)
    assert count == 1000 if backend == "sync" else 900 < count < 1000
    assert one.algorithm.policy.reward_normalizer.moments.count == count


def test_policies_without_normalisers_take_none(caplog: pytest.LogCaptureFixture) -> None:
    one = trainer(policy_options={})
    steps = count_steps(one)
    with caplog.at_level(logging.INFO, "rltrainer"):
        one.reset()
    assert (steps, "normalisers" in caplog.text) == ([], False)


def count_steps(one: rl.OnPolicyTrainer) -> list[int]:
    steps: list[int] = []
    envs = one.params.training_collector.envs
    step = envs.step
    envs.step = lambda actions: steps.append(1) or step(actions)  # type: ignore[method-assign]
    return steps


@pytest.mark.parametrize("which", ["obs", "reward"])
def test_one_normaliser_is_enough(which: str) -> None:
    one = trainer(policy_options={f"normalize_{which}": True})
    one.reset()
    policy = one.algorithm.policy
    moments = policy.obs_normalizer.moments["0"] if which == "obs" else policy.reward_normalizer.moments
    assert int(moments.count) == 1000


def test_statistics_that_are_there_stay(tmp_path: Path) -> None:
    first = trainer()
    first.run()
    # A second run of the same trainer, and an algorithm that was loaded.
    first.algorithm.save(tmp_path / "algorithm.safetensors")
    other = trainer()
    other.algorithm.load(tmp_path / "algorithm.safetensors")
    for one in (first, other):
        before = int(one.algorithm.policy.obs_normalizer.moments["0"].count)
        assert before == 1040
        steps = count_steps(one)
        one.reset()
        assert steps == []
        assert int(one.algorithm.policy.obs_normalizer.moments["0"].count) == before


def test_they_are_said_and_logged(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rltrainer"):
        trainer(verbose=True).run()
    text = "normalisers begin with statistics of 1,000 env steps of random actions, which are not counted"
    assert capfd.readouterr().out.splitlines()[0] == text
    assert text in [record.message for record in caplog.records]


def test_envs_in_the_middle_of_episodes_are_left_alone() -> None:
    """`run(reset_collectors=False)` after a collection by hand continues the episodes; before one it takes them."""
    one = trainer(envs=counting_envs(2, length=7))
    collector = one.params.training_collector
    collector.collect(num_steps=6)
    one.reset(reset_collectors=False)
    assert int(one.algorithm.policy.obs_normalizer.moments["0"].count) == 0
    assert collector.collect(num_steps=8).lengths.tolist() == [7, 7]
    fresh = trainer()
    fresh.reset(reset_collectors=False)
    assert int(fresh.algorithm.policy.obs_normalizer.moments["0"].count) == 1000


def test_an_algorithm_observes_them_as_it_does_all_data() -> None:
    observed: list[int] = []

    class Observes(ScriptedOnPolicy):
        def observe(self, rollout: rl.Rollout) -> None:
            observed.append(rollout.reward.numel())
            super().observe(rollout)

    envs = rl.make_vec(CountingEnv, 2, backend="sync")
    algorithm = Observes(tiny_actor_critic(envs, normalize_obs=True))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs), max_epochs=1, epoch_num_steps=10,
        collection_step_num_env_steps=10, show_progress=False, verbose=False,
    )  # fmt: skip
    algorithm.run_training(params)
    assert observed == [1000, 10]
