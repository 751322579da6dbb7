"""Noise that each env keeps for some steps: how long, whose, and not in greedy actions."""

import pytest
import torch

import rltrainer as rl
from rltrainer.nets.noise import DrawnNumbers, RepeatedNoise
from tests.batches import generator
from tests.fakes import counting_envs
from tests.unit.nets.test_heads import BOUNDED


def test_shares_of_repetitions_by_hand() -> None:
    # n^-2 over 1 + 1/4 + 1/9 + ... + 1/256 = 1.584347; the last share is certain.
    noise = RepeatedNoise(2, 16)
    chances = torch.cat([noise.shares, torch.ones(1)]).diff(prepend=torch.zeros(1))
    assert chances[:3].tolist() == pytest.approx([0.631175, 0.157794, 0.070131], abs=1e-6)
    assert (chances * torch.arange(1, 17)).sum().item() == pytest.approx(2.1338, abs=1e-4)


def test_numbers_are_kept_until_none_of_their_steps_is_left() -> None:
    noise, state = RepeatedNoise(1, 16), torch.tensor([[0.0, 9.0], [0.0, 9.0], [3.0, 9.0], [0.0, 9.0]])
    chance, drawn = torch.tensor([[0.6], [0.7], [0.7], [1 - 2**-24]]), torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    found, state = noise.step(state, DrawnNumbers([chance, drawn]))  # type: ignore[arg-type]  # stands for one
    assert found.tolist() == [[1.0], [2.0], [9.0], [4.0]]
    assert state.tolist() == [[0.0, 1.0], [1.0, 2.0], [2.0, 9.0], [15.0, 4.0]]  # for 1, 2 and 16 steps


def test_a_policy_repeats_its_noise_within_an_episode_and_in_no_greedy_action() -> None:
    envs = counting_envs(3, length=8, action_space=BOUNDED)
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,), log_std_init=-1.0, noise_repeat=16)
    spaces = (envs.single_observation_space, envs.single_action_space)
    one = rl.Collector(policy, envs, rl.RolloutBuffer(24, 3, *spaces, extra={"state": policy.columns["state"]}))
    one.seed(1)
    one.collect(num_steps=3 * 24)
    rollout, state = one.rollout(), one.rollout().extra["state"]
    num_left, begins = state[:-1, :, 0], torch.arange(1, 24)[:, None] % 8 == 0
    is_kept = (state[1:, :, 1:] == state[:-1, :, 1:]).all(-1)
    assert torch.equal(is_kept, (num_left > 0) & ~begins)
    assert not state[[0, 8, 16]].any()
    with torch.no_grad():
        distribution = policy.distribution(rollout.obs[:-1])
    expected = policy.scale((distribution.mean + distribution.log_std.exp() * state[1:, :, 1:]).tanh())
    torch.testing.assert_close(rollout.action[:-1][~begins[:, 0]], expected[~begins[:, 0]])
    one.collect(num_steps=3, explore=False)
    assert torch.equal(one.rollout().action[0], policy.act(one.rollout().obs[0]))
    assert not policy.is_recurrent


def test_acting_needs_no_memory() -> None:
    policy = rl.SquashedActorCritic.for_spaces(BOUNDED, BOUNDED, hidden_sizes=(8,), noise_repeat=4)
    obs = torch.randn(5, 2, generator=generator(9))
    first = policy.act(obs, explore=True, generator=generator(1))
    acted = policy.act(obs, policy.initial_state(5), explore=True, generator=generator(1))  # type: ignore[arg-type]  # a tensor
    assert torch.equal(acted[0], first)
    plain = rl.SquashedActorCritic.for_spaces(BOUNDED, BOUNDED, hidden_sizes=(8,))
    plain.load_state_dict(policy.state_dict())  # which holds the same names
    assert plain.initial_state(5) is None
