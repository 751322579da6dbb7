"""RecurrentPPO: what a rollout means to a policy with memory, and minibatches of whole envs."""

from typing import Any

import gymnasium as gym
import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms import OnPolicyBatch
from rltrainer.algorithms.sequences import Sequences
from rltrainer.envs.tensors.classic_control import MountainCar
from rltrainer.types import DenseRollout
from tests.fakes import counting_envs
from tests.unit.envs.scripted import SEED, ScriptedVectorEnv


class Recorder(rl.RecurrentPPO):
    """Keeps the minibatches, and the logarithms of the ratios in the first gradient step."""

    def gradient_step(self, batch: OnPolicyBatch) -> rl.UpdateResult:
        vars(self).setdefault("seen", []).append(batch)
        return super().gradient_step(batch)

    def policy_loss(self, log_prob: torch.Tensor, batch: OnPolicyBatch) -> torch.Tensor:
        vars(self).setdefault("log_ratio", log_prob.detach() - batch.log_prob)
        return super().policy_loss(log_prob, batch)


def collected(
    num_envs: int = 4, num_rows: int = 8, truncates: bool = True, envs: Any = None, **options: Any
) -> tuple[Any, rl.Rollout]:
    """Return an algorithm, and what its policy did after a first rollout, in the middle of episodes of 5 steps."""
    rl.seed(3)
    envs = counting_envs(num_envs, truncates=truncates) if envs is None else envs
    policy = rl.RecurrentActorCritic.for_envs(envs, hidden_sizes=(8,), cell_size=6, normalize_obs=True, **options)
    policy.actor[-1].linear.weight.data.mul_(100)  # as after a training: actions depend on what was seen
    spaces = (envs.single_observation_space, envs.single_action_space)
    buffer = rl.RolloutBuffer(num_rows, num_envs, *spaces, extra=policy.columns)
    collector = rl.Collector(policy, envs, buffer)
    collector.adapter.seed(SEED)
    collector.generator.manual_seed(SEED)
    for _ in range(2):
        collector.collect(num_steps=num_envs * num_rows)
    algorithm = Recorder(policy)
    algorithm.seed(1)
    return algorithm, collector.rollout()


@pytest.mark.parametrize(("limit", "num_ended"), [(20, 4), (8, 8), (1, 64)])  # compiled code has room for 4 of 64
@torch.no_grad()
def test_envs_of_tensors_bootstrap_from_final_observations(limit: int, num_ended: int) -> None:
    hill: Any = type("Hill", (MountainCar,), {"max_episode_steps": limit})
    algorithm, rollout = collected(num_rows=16, envs=rl.make_vec(hill, 4, backend="tensor", seed=1))
    assert isinstance(rollout, DenseRollout)
    assert len(rollout.final_index) == num_ended
    (found, _), expected = algorithm._processed(rollout), algorithm.process(rollout.plain())
    torch.testing.assert_close(found.return_, expected.return_, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@torch.no_grad()
def test_values_are_those_of_the_memory_that_was_acted_with(cell: str) -> None:
    algorithm, rollout = collected(cell=cell)
    policy, samples = algorithm.policy, algorithm.process(rollout)
    assert rollout.begins.any()
    assert rollout.extra["state"][0].abs().sum() > 0, "it begins in the middle of episodes"
    # Step by step, with the memory that the collector kept for each cell.
    for t in range(8):
        obs = policy.normalize(rollout.obs[t])
        state = policy.next_state(obs, rollout.extra["state"][t])
        torch.testing.assert_close(samples.value[t], policy.value(state), rtol=0, atol=1e-6)
        log_prob = policy.distribution(state).log_prob(rollout.action[t])
        torch.testing.assert_close(samples.log_prob[t], log_prob, rtol=0, atol=1e-6)
    torch.testing.assert_close(samples.log_prob, rollout.extra["log_prob"], rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_final_observation_is_valued_with_the_memory_of_its_episode() -> None:
    algorithm, rollout = collected(num_envs=2)
    algorithm.gamma = 0.5
    object.__setattr__(algorithm.params, "gamma", 0.5)
    object.__setattr__(algorithm.params, "gae_lambda", 0.0)
    policy, samples = algorithm.policy, algorithm.process(rollout)
    assert len(rollout.final_index) > 0
    next_obs = rollout.next_obs
    for t in range(8):
        state = policy.next_state(policy.normalize(rollout.obs[t]), rollout.extra["state"][t])
        after = policy.value(policy.next_state(policy.normalize(next_obs[t]), state))
        # One-step returns: r + 0.5 V(next obs, what was remembered until then); all ends are truncations.
        torch.testing.assert_close(samples.return_[t], rollout.reward[t] + 0.5 * after, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
@torch.no_grad()
def test_every_autoreset_mode_is_understood(mode: Any) -> None:
    algorithm, rollout = collected(3, 20, envs=ScriptedVectorEnv(3, mode))
    samples = algorithm.process(rollout)
    valid = rollout.valid
    assert rollout.begins.any()
    torch.testing.assert_close(samples.log_prob[valid], rollout.extra["log_prob"][valid], rtol=0, atol=1e-6)
    assert torch.equal(samples.weight, valid.float())


@pytest.mark.parametrize("batch_size", [8, 16, 32, None])
def test_the_ratio_is_one_before_the_first_step(batch_size: int | None) -> None:
    algorithm, rollout = collected()
    algorithm.update(rollout, batch_size, 1)
    assert algorithm.log_ratio.abs().max() < 1e-6


@pytest.mark.parametrize(("batch_size", "sizes"), [(8, [1] * 4), (16, [2, 2]), (24, [2, 2]), (32, [4]), (None, [4])])
def test_minibatches_are_whole_envs(batch_size: int | None, sizes: list[int]) -> None:
    algorithm, rollout = collected()
    rollout.extra["env"] = torch.arange(4.0).repeat(8, 1)
    result = algorithm.update(rollout, batch_size, 2)
    assert result.num_gradient_steps == 2 * len(sizes)
    width = min(batch_size or 32, 32)
    for k in (0, len(sizes)):
        batches = algorithm.seen[k : k + len(sizes)]
        assert all(isinstance(batch, Sequences) and len(batch.weight) == width for batch in batches)
        assert [int(batch.weight.sum()) // 8 for batch in batches] == sizes
        envs = [n for batch in batches for n in _envs_of(batch, rollout)]
        assert sorted(envs) == [0, 1, 2, 3]


def _envs_of(batch: Any, rollout: rl.Rollout) -> list[int]:
    """Return which envs' whole sequences are in a minibatch; others have no weight."""
    num = len(batch.state)
    weight, env, obs = batch.weight.view(8, num), batch.extra["env"].view(8, num), batch.obs.view(8, num, -1)
    found = []
    for i in range(num):
        assert len(set(weight[:, i].tolist())) == 1, "an env counts, or pads"
        if weight[0, i]:
            [n] = {int(x) for x in env[:, i]}
            assert torch.equal(batch.state[i], rollout.extra["state"][0, n])
            assert torch.equal(batch.begins.view(8, num)[:, i], rollout.begins[:, n])
            assert torch.equal(obs[:, i, 1], rollout.obs[:, n, 1]), "steps of the episode, time first"
            found.append(n)
    return found


def test_a_padded_minibatch_is_the_smaller_one() -> None:
    """Three envs in minibatches of two are one of two and one of one, which an env of weight 0 pads."""
    algorithm, rollout = collected(num_envs=3)
    other, _ = collected(num_envs=3)
    algorithm.update(rollout, 16, 1)
    *_, last = algorithm.seen
    assert last.weight.view(8, 2)[0].tolist() == [1.0, 0.0]
    alone = last.map(lambda x: x.view(8, 2, *x.shape[1:])[:, 0] if len(x) == 16 else x[:1])
    padded = other.gradient_step(last).floats()
    third, _ = collected(num_envs=3)
    assert padded == pytest.approx(third.gradient_step(alone).floats(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("batch_size", "num_steps"), [(8, 2), (16, 1), (32, 1)])
def test_envs_in_which_nothing_happened_are_left_out(batch_size: int, num_steps: int) -> None:
    """As rows of agents that are gone: a minibatch without a cell that counts would have no mean."""
    algorithm, rollout = collected()
    rollout.extra["env"] = torch.arange(4.0).repeat(8, 1)
    rollout.valid[:, [0, 2]] = False
    result = algorithm.update(rollout, batch_size, 3)
    assert result.num_gradient_steps == 3 * num_steps
    assert all(torch.isfinite(value) for value in result.metrics.values())
    counted = [n for batch in algorithm.seen[:num_steps] for n in _envs_of(batch, rollout)]
    assert sorted(counted) == [1, 3]
    rollout.valid[:] = False
    assert algorithm.update(rollout, 8, 3).num_gradient_steps == 0
