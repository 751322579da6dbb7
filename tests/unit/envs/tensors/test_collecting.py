"""Collectors, tests of a policy and checkpoints take envs of tensors like any others."""

from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.envs.tensors.tensor_vector_env import TensorEnvState
from tests.unit.envs.tensors.test_tensor_vector_env import Count

N = 4


def collector(seed: int = 1, num_steps: int = 6) -> rl.Collector:
    envs = rl.make_vec(Count, N, backend="tensor", seed=seed)
    torch.manual_seed(0)
    policy = rl.ActorCritic.for_envs(envs, hidden_sizes=(4,))
    buffer = rl.RolloutBuffer(num_steps, N, envs.single_observation_space, envs.single_action_space)
    return rl.Collector(policy, envs, buffer)


def test_a_rollout_is_what_advance_returns() -> None:
    made = collector()
    envs: Any = made.envs
    made.reset()
    table = envs.generator.get_state()
    state = TensorEnvState(tuple(leaf.clone() for leaf in envs.current.state), envs.current.num_steps.clone())
    stats = made.collect(num_steps=6 * N)
    rollout = made.rollout()
    envs.generator.set_state(table)
    returns, running, lengths = [], torch.zeros(N), []
    for t in range(6):
        obs, num_steps = envs.env.observe(state.state), state.num_steps + 1
        state, step = envs.advance(state, rollout.action[t], envs.sample_uniforms())
        for name in ("number", "half"):
            assert torch.equal(rollout.obs[name][t], obs[name])
            assert torch.equal(rollout.next_obs[name][t], step.final_obs[name])
        assert torch.equal(rollout.reward[t], step.reward)
        assert torch.equal(rollout.terminated[t], step.terminated)
        assert torch.equal(rollout.truncated[t], step.truncated)
        running += step.reward
        done = step.terminated | step.truncated
        returns += running[done].tolist()
        lengths += num_steps[done].tolist()
        running[done] = 0.0
    assert rollout.valid.all()  # no step is lost to a reset
    assert rollout.terminated.any()
    assert (rollout.truncated & ~rollout.terminated).any()
    assert stats.num_collected_steps == 6 * N
    assert stats.returns.tolist() == pytest.approx(returns)
    assert stats.lengths.tolist() == lengths


def test_whole_episodes() -> None:
    made = collector(num_steps=20)
    stats = made.collect(num_episodes=10)
    assert stats.num_collected_episodes == 10
    assert stats.lengths.max() <= 3
    assert int(made.rollout().valid.sum()) == stats.lengths.sum() == stats.num_collected_steps
    assert rl.evaluate_policy(made.policy, made.envs, num_episodes=6).num_collected_episodes == 6


def test_a_policy_is_evaluated_by_a_factory_of_rules() -> None:
    policy = collector().policy
    before = torch.get_rng_state()
    first, same = (rl.evaluate_policy(policy, Count, num_episodes=6, seed=1) for _ in range(2))
    assert first.num_collected_episodes == 6
    assert first.returns.tolist() == same.returns.tolist()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("env", ["CartPole-v1", Count])
def test_train_takes_ids_and_rules(env: Any, tmp_path: Path) -> None:
    options: Any = {"num_env_steps": 64, "num_envs": 8, "max_epochs": 1, "verbose": False, "show_progress": False}
    training = rl.train(env, "ppo", backend="tensor", folder=tmp_path, batch_size=None, lr=1e-3, **options)
    assert training.info.env_step >= 64
    assert training.recipe.backend == "tensor"
    assert rl.load(training.folder.path / "best.safetensors").policy.observation_space is not None
