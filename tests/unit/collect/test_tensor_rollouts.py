"""Rollouts of envs of tensors: the same steps as one by one, where episodes end, resumes, and what falls back."""

import copy
import logging
import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.collect.tensor_rollouts import TensorRollouts
from rltrainer.envs.tensors.tensor_vector_env import TensorVectorEnv
from rltrainer.errors import NonFiniteError
from rltrainer.execution import cpu_loop
from rltrainer.nets.policy import VERSION, Decision
from rltrainer.types import DenseRollout


class Counting(rl.TensorEnv):
    """Terminates after 2 steps or, where the first random number is large, is truncated after 3; rewards the step."""

    observation_space = gym.spaces.Box(0.0, 100.0, (2,))
    action_space = gym.spaces.Discrete(2)
    max_episode_steps = 3
    num_first_uniforms = 1

    def first_state(self, uniform: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(uniform), (uniform > 0.5).float()], 1)

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        step = state[:, 0] + 1
        return torch.stack([step, state[:, 1]], 1), step, (step == 2) & (state[:, 1] == 0)


class Bumpy(Counting):
    """Rewards NaN at the second step."""

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        after, reward, terminated = super().transition(state, action, uniform)
        return after, torch.where(reward == 2, torch.nan, reward), terminated


def collector_of(env: Any = "CartPole-v1", num_envs: int = 3, policy: Any = None, **options: Any) -> rl.Collector:
    rl.seed(1)
    envs = rl.make_vec(env, num_envs, backend="tensor", seed=5)
    policy = policy or rl.ActorCritic.for_envs(envs)
    buffer = rl.RolloutBuffer(4, num_envs, *spaces_of(envs), extra=options.pop("extra", None))
    collector = rl.Collector(policy, envs, buffer, **options)
    collector.seed(7)
    return collector


def spaces_of(envs: Any) -> tuple[Any, Any]:
    return envs.single_observation_space, envs.single_action_space


@pytest.mark.parametrize("num_rows", [1, 16, 40])
def test_rows_are_what_policy_and_envs_do(num_rows: int) -> None:
    collector = collector_of("Pendulum-v1", 2)
    collector.reset()
    envs, generator = copy.deepcopy(collector.envs), copy.deepcopy(collector.generator)
    collector.collect(num_steps=2 * num_rows)
    rollout = collector.rollout()
    assert isinstance(rollout, DenseRollout)
    uniform, noise = envs.sample_uniforms(num_rows), torch.empty(num_rows, 2, 1).normal_(generator=generator)
    state = envs.current
    for t in range(num_rows):
        obs = envs.observe(state.state)
        assert torch.equal(rollout.obs[t], obs)
        with torch.no_grad():
            distribution = collector.policy.distribution(obs)
            torch.testing.assert_close(rollout.action[t], distribution.mean + distribution.log_std.exp() * noise[t])
        state, step = envs.advance(state, rollout.action[t].clamp(-2.0, 2.0), uniform[t])
        for found, expected in ((rollout.reward[t], step.reward), (rollout.successor[t], step.final_obs)):
            assert torch.equal(found, expected)
    assert torch.equal(rollout.last_obs, step.obs)
    assert torch.equal(collector.adapter.obs, step.obs)


def test_episodes_end_by_termination_or_truncation() -> None:
    collector = collector_of(Counting, 2)
    collector.envs.generator.manual_seed(3)  # the first numbers of an episode are the seed's
    stats = collector.collect(num_steps=2 * 7)
    rollout, kind = collector.rollout(), collector.rollout().obs[..., 1]
    step = rollout.obs[..., 0] + 1
    assert torch.equal(rollout.terminated, (step == 2) & (kind == 0))
    assert torch.equal(rollout.truncated, step == 3)
    assert torch.equal(rollout.successor[..., 0], step)
    assert torch.equal(rollout.next_obs, rollout.successor)
    assert torch.equal(rollout.reward, step)
    ended = rollout.done.nonzero()
    assert rollout.final_index.tolist() == [2 * t + n for t, n in ended.tolist()]
    expected = [(step[t, n].item(), step[t, n].item() * (step[t, n].item() + 1) / 2) for t, n in ended.tolist()]
    assert list(zip(stats.lengths.tolist(), stats.returns.tolist(), strict=True)) == expected
    assert bool(rollout.valid.all())
    assert rollout.starts.tolist() == [True, True]


def test_returns_and_lengths_run_on_from_collection_to_collection() -> None:
    split, whole = collector_of(num_envs=3), collector_of(num_envs=3)
    parts = [split.collect(num_steps=3 * rows) for rows in (5, 1, 60)]
    stats = [step_by_step(whole, rows) for rows in (5, 1, 60)]
    for part, expected in zip(parts, stats, strict=True):
        assert part.returns.tolist() == expected.returns.tolist()
        assert part.lengths.tolist() == expected.lengths.tolist()
    assert sum(len(part.lengths) for part in parts) > 3
    clock, other = split.adapter.get_state().clock, whole.adapter.get_state().clock
    assert (clock.episode, clock.episode_step, clock.num_steps) == (
        other.episode, other.episode_step, other.num_steps,
    )  # fmt: skip
    assert not split.rollout().starts.any()


def step_by_step(collector: rl.Collector, num_rows: int) -> rl.CollectStats:
    """Collect without `TensorRollouts`, with the random numbers that it would take."""
    envs, tensors, collector._tensors = collector.envs, collector._tensors, None
    if collector.needs_reset:
        collector.reset()
    uniform = iter(envs.sample_uniforms(num_rows))
    exponential = iter(torch.empty(num_rows, envs.num_envs, 2).exponential_(generator=collector.generator))
    policy = collector.policy

    def drawn(obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> Decision:
        logits = policy.distribution(obs).logits
        return Decision((logits - next(exponential).log()).argmax(-1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "decide", drawn)
        patch.setattr(envs, "sample_uniforms", lambda: next(uniform))
        stats = collector.collect(num_steps=num_rows * envs.num_envs)
    collector._tensors = tensors
    return stats


def test_collections_step_by_step_and_at_once_follow_each_other() -> None:
    collector = collector_of(num_envs=3)
    collector.collect(num_steps=30)
    last = collector.rollout().last_obs.clone()
    tensors, collector._tensors = collector._tensors, None
    collector.collect(num_steps=9)
    collector._tensors = tensors
    assert torch.equal(collector.rollout().obs[0], last)
    assert type(collector.rollout()) is rl.Rollout
    last = collector.rollout().last_obs.clone()
    collector.collect(num_steps=9)
    assert torch.equal(collector.rollout().obs[0], last)
    assert collector.collect(num_episodes=4).num_collected_episodes == 4
    collector.collect(num_steps=3)
    assert collector.rollout().starts.all()


def test_a_fault_is_named_and_nothing_is_stored() -> None:
    collector = collector_of(Bumpy, 2)
    with pytest.raises(NonFiniteError, match=r"env 0, step 2: reward = nan; nothing of this collection was stored"):
        collector.collect(num_steps=8)
    assert len(collector.buffer or ()) == 0


class Hazy(Counting):
    """Observes NaN after the second step."""

    def observe(self, state: Tensor) -> Tensor:
        return torch.where(state == 2, torch.nan, state)


@pytest.mark.parametrize(("env", "text"), [
    (Hazy, "env 0, step 2: obs = nan"),
    (Counting, "QNetwork, step 1: no choice can be made in row 0 of the batch: its logits or action values are [nan, "),
])  # fmt: skip
def test_a_choice_between_nan_names_the_step(env: Any, text: str) -> None:
    envs = rl.make_vec(env, 2, backend="tensor", seed=5)
    policy = rl.QNetwork.for_envs(envs, hidden_sizes=(8,))
    collector = rl.Collector(policy, envs, rl.ReplayBuffer(64, *spaces_of(envs), num_envs=2))
    if env is Counting:
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match=f"^{re.escape(text)}"):
        collector.collect(num_steps=8)
    assert len(collector.buffer or ()) == 0


def test_memory_begins_again_with_each_episode() -> None:
    rl.seed(1)
    envs = rl.make_vec(Counting, 2, backend="tensor", seed=5)
    policy = rl.RecurrentActorCritic.for_envs(envs)
    extra = {"state": policy.columns["state"]}
    collector = collector_of(Counting, 2, policy=policy, extra=extra)
    collector.collect(num_steps=2 * 6)
    rollout = collector.rollout()
    assert isinstance(rollout, DenseRollout)
    state, begins = rollout.extra["state"], rollout.begins
    assert begins.any()
    for t in range(5):
        memory = policy.select_action(rollout.obs[t], state[t]).state
        assert memory is not None
        torch.testing.assert_close(state[t + 1], torch.where(begins[t + 1][:, None], 0.0, memory))


def test_rows_say_which_version_of_the_weights_acted() -> None:
    collector = collector_of(extra=dict(VERSION))
    for version in (0, 1):
        collector.collect(num_steps=3 * 20)
        assert torch.equal(collector.rollout().extra["version"], torch.full((20, 3), version))
        collector.policy.version += 1


def test_a_replay_buffer_gets_what_the_envs_received() -> None:
    rl.seed(1)
    envs = rl.make_vec("Pendulum-v1", 2, backend="tensor", seed=5)
    policy = rl.ActorCritic.for_envs(envs, log_std_init=2.0)
    buffer = rl.ReplayBuffer(100, *spaces_of(envs), num_envs=2)
    collector = rl.Collector(policy, envs, buffer)
    collector.collect(num_steps=2 * 30)
    assert len(buffer) == 60
    batch = buffer.sample(200)
    assert batch.action.abs().max() == 2.0
    whole = collector.rollout()
    assert torch.equal(whole.action.abs() <= 2.0, torch.ones_like(whole.action, dtype=torch.bool))
    index = [(whole.obs == obs).all(-1).nonzero()[0].tolist() for obs in batch.obs]
    for (t, n), next_obs in zip(index, batch.next_obs, strict=True):
        assert torch.equal(whole.successor[t, n], next_obs)


class Dicing(rl.ActorCritic):
    """Draws by itself."""

    def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> Decision:
        return Decision(torch.randint(2, (len(obs),), generator=generator))


def test_a_policy_that_draws_by_itself_acts_step_by_step(caplog: pytest.LogCaptureFixture) -> None:
    envs = rl.make_vec("CartPole-v1", 2, backend="tensor", seed=5)
    collector = collector_of(num_envs=2, policy=Dicing.for_envs(envs))
    with caplog.at_level(logging.INFO, "rltrainer"):
        collector.collect(num_steps=6)
        collector.collect(num_steps=6)
    assert type(collector.rollout()) is rl.Rollout
    assert [record.message.partition(" by itself")[0] for record in caplog.records if "Dicing" in record.message] == [
        "Dicing acts step by step in envs of tensors, as it draws its random numbers"
    ]


def test_exploration_of_ones_own_acts_step_by_step() -> None:
    envs = rl.make_vec("CartPole-v1", 2, backend="tensor", seed=5)
    policy = rl.QNetwork.for_envs(envs)
    collector = collector_of(num_envs=2, policy=policy, exploration=lambda action, *_: 1 - action)
    collector.collect(num_steps=6)
    assert type(collector.rollout()) is rl.Rollout
    assert torch.equal(collector.rollout().action[0], 1 - policy.act(collector.rollout().obs[0]))


def explorer_of(env: str, policy_class: Any, exploration: Any, num_envs: int = 50, **options: Any) -> rl.Collector:
    """Return a collector into a replay buffer, whose policy explores so."""
    rl.seed(1)
    envs = rl.make_vec(env, num_envs, backend="tensor", seed=5)
    policy = policy_class.for_envs(envs, hidden_sizes=(8,), **options)
    policy.exploration = exploration
    collector = rl.Collector(policy, envs, rl.ReplayBuffer(10_000, *spaces_of(envs), num_envs=num_envs))
    collector.seed(7)
    return collector


def test_epsilon_greedy_follows_its_schedule() -> None:
    exploration = rl.EpsilonGreedy(rl.LinearSchedule(1.0, 0.0))
    collector = explorer_of("CartPole-v1", rl.QNetwork, exploration)
    policy, shares = collector.policy, []
    for progress in (0.0, 0.5, 1.0):
        policy.progress = lambda value=progress: value
        collector.collect(num_steps=50 * 20)
        rollout = collector.rollout()
        assert isinstance(rollout, DenseRollout)
        greedy = policy.act(rollout.obs.flatten(0, 1)).view(rollout.action.shape)
        shares.append((rollout.action != greedy).float().mean().item())
    assert shares == [pytest.approx(0.5, abs=0.05), pytest.approx(0.25, abs=0.05), 0.0]
    assert policy.exploration is exploration
    assert policy.progress() == 1.0
    collector.collect(num_steps=50, explore=False)
    rollout = collector.rollout()
    assert torch.equal(rollout.action[0], policy.act(rollout.obs[0]))


def test_gaussian_noise_has_the_numbers_of_the_collector_s_generator() -> None:
    collector = explorer_of("Pendulum-v1", rl.DeterministicActorCritic, rl.GaussianNoise(0.2), num_envs=3)
    generator = copy.deepcopy(collector.generator)
    collector.collect(num_steps=3 * 20)
    rollout, noise = collector.rollout(), torch.empty(20, 3, 1).normal_(generator=generator)
    for obs, action, own in zip(rollout.obs, rollout.action, noise, strict=True):
        expected = (collector.policy.act(obs) + 0.2 * 2.0 * own).clamp(-2.0, 2.0)
        torch.testing.assert_close(action, expected)


def test_drifting_noise_is_kept_between_collections_and_begins_again_with_an_episode() -> None:
    noise = rl.OrnsteinUhlenbeckNoise(0.5)
    collector = explorer_of("Pendulum-v1", rl.DeterministicActorCritic, noise, num_envs=3)
    for num_rows in (150, 60):  # an episode has 200 steps
        collector.collect(num_steps=3 * num_rows)
        memory = collector._selection.memory
        assert memory is not None
        rollout = collector.rollout()
        assert isinstance(rollout, DenseRollout)
        assert bool((memory != 0).all())
        applied = (rollout.action[-1] - collector.policy.act(rollout.obs[-1])) / 2.0
        inside = rollout.action[-1].abs() < 2.0
        torch.testing.assert_close(applied[inside], memory[inside], atol=1e-5, rtol=1e-5)
    assert rollout.truncated[49].all()
    assert collector.collect(num_steps=3 * 190).num_collected_episodes == 3
    assert bool((collector._selection.memory == 0).all())  # type: ignore[union-attr]  # every env has just begun one


CHUNKS = SimpleNamespace(for_envs=partial(rl.FlowActorCritic.for_envs, chunk_length=3))


def test_a_warm_up_takes_uniform_actions_for_all_rows() -> None:
    collector = explorer_of("Pendulum-v1", rl.DeterministicActorCritic, rl.GaussianNoise(0.2), num_envs=3)
    generator = copy.deepcopy(collector.generator)
    collector.collect(num_steps=3 * 20, random=True)
    rollout = collector.rollout()
    assert isinstance(rollout, DenseRollout)
    expected = 4.0 * torch.rand(60, 1, generator=generator).view(20, 3, 1) - 2.0
    torch.testing.assert_close(rollout.action, expected)


MADE: dict[str, Any] = {
    "sampling": lambda: collector_of(num_envs=3),
    "epsilon": lambda: explorer_of("CartPole-v1", rl.QNetwork, rl.EpsilonGreedy(rl.LinearSchedule(1.0, 0.0)), 3),
    "normal": lambda: explorer_of("Pendulum-v1", rl.DeterministicActorCritic, rl.GaussianNoise(0.2), 3),
    "drifting": lambda: explorer_of("Pendulum-v1", rl.DeterministicActorCritic, rl.OrnsteinUhlenbeckNoise(0.2), 3),
    "repeated": lambda: explorer_of("Pendulum-v1", rl.SquashedActorCritic, None, 3, noise_repeat=16),
    "chunks": lambda: explorer_of("Pendulum-v1", CHUNKS, None, 3),
}


@pytest.mark.parametrize(
    "name", ["epsilon", *(pytest.param(n, marks=pytest.mark.full) for n in MADE if n != "epsilon")]
)
def test_the_function_of_rows_is_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    eager, traced = MADE[name](), MADE[name]()
    graphs = []

    def count(graph: Any, inputs: Any) -> Any:
        assert "wrapped_" not in graph.code  # a computation of NumPy's, at which the compiler breaks the graph
        graphs.append(graph)
        return graph.forward

    def traced_loop(name: str, function: Any) -> Any:
        # Without `fullgraph`, which is traced otherwise where a number of NumPy's is converted to one of Python's.
        step = torch.compile(function, backend=count, dynamic=False)
        return lambda state, num_steps, *args: [step(torch.tensor([k]), *args) for k in range(num_steps)]

    monkeypatch.setattr(cpu_loop, "CompiledLoop", traced_loop)
    traced.policy.is_compiled = True
    for k in range(2):
        for collector in (eager, traced):
            collector.policy.progress = lambda: k / 2  # noqa: B023  # called before k changes
            collector.collect(num_steps=12)
    assert len(graphs) == 1
    for name in ("obs", "action", "reward"):
        torch.testing.assert_close(getattr(traced.rollout(), name), getattr(eager.rollout(), name), rtol=0, atol=1e-6)


def test_a_copy_collects_with_its_own_networks() -> None:
    collector = collector_of(num_envs=3)
    assert isinstance(collector._tensors, TensorRollouts)
    other = copy.deepcopy(collector)
    with torch.no_grad():
        for parameter in other.policy.parameters():
            parameter.normal_()
    one, two = collector.collect(num_steps=3 * 30), other.collect(num_steps=3 * 30)
    assert isinstance(other.envs, TensorVectorEnv)
    assert other._tensors is not collector._tensors
    assert not torch.equal(collector.rollout().action, other.rollout().action)
    assert one.num_collected_steps == two.num_collected_steps
    assert np.isfinite(two.returns).all()
