"""Heads: which distribution an action space gets, and noise that is a function of what is seen."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rltrainer as rl
from rltrainer.nets import GaussianActorCritic
from rltrainer.nets.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical, SquashedGaussian
from rltrainer.nets.heads import GaussianHead, SquashedGaussianHead, StateDependentHead, make_head
from tests.batches import generator
from tests.fakes import OBS_SPACE, counting_envs

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_each_space_gets_its_distribution() -> None:
    features = torch.randn(5, 4)
    discrete: Any = make_head(4, spaces.Discrete(3, start=7), "Owner")
    assert torch.equal(discrete(features).logits, discrete.linear(features))
    assert discrete(features).start == 7
    multi: Any = make_head(4, spaces.MultiDiscrete([2, 3], start=[0, 5]), "Owner")
    parts, logits = multi(features).parts, multi.linear(features)
    assert torch.equal(parts[0].logits, logits[:, :2])
    assert torch.equal(parts[1].logits, logits[:, 2:])
    assert [part.start for part in parts] == [0, 5]
    flags: Any = make_head(4, spaces.MultiBinary(3), "Owner")
    assert torch.equal(flags(features).logits, flags.linear(features))
    gaussian: Any = make_head(4, BOX, "Owner")
    assert torch.equal(gaussian(features).mean, gaussian.linear(features))
    assert gaussian(features).log_std.tolist() == [0.0, 0.0]
    squashed = SquashedGaussianHead(4, 2)
    assert torch.equal(squashed(features).mean, squashed.linear(features)[:, :2])
    assert torch.equal(squashed(features).log_std, squashed.linear(features)[:, 2:])
    assert [type(head(features)) for head in (discrete, multi, flags, gaussian, squashed)] == [
        Categorical, MultiCategorical, Bernoulli, DiagonalGaussian, SquashedGaussian,
    ]  # fmt: skip


def test_a_bounded_mean_is_squashed() -> None:
    head = GaussianHead(4, 2, log_std=-1.0, bounded_mean=True)
    features = 100 * torch.randn(5, 4)
    distribution = head(features)
    torch.testing.assert_close(distribution.mean, head.linear(features).tanh())
    assert distribution.log_std.tolist() == [-1.0, -1.0]


def test_log_std_is_kept_in_range() -> None:
    gaussian, squashed = GaussianHead(4, 2), SquashedGaussianHead(4, 2)
    for value, of_gaussian, of_squashed in ((-100.0, -5.0, -20.0), (100.0, 2.0, 2.0)):
        torch.nn.init.constant_(gaussian.log_std, value)
        torch.nn.init.zeros_(squashed.linear.weight)
        torch.nn.init.constant_(squashed.linear.bias, value)
        assert gaussian(torch.ones(1, 4)).log_std.tolist() == [of_gaussian] * 2
        assert squashed(torch.ones(1, 4)).log_std.tolist() == [[of_squashed] * 2]


def test_a_spread_beyond_its_bounds_is_still_trained() -> None:
    head = GaussianHead(4, 2)
    with torch.no_grad():
        head.log_std.copy_(torch.tensor([-5.7, 2.3]))
    log_std = head(torch.ones(1, 4)).log_std
    assert log_std.tolist() == [-5.0, 2.0]
    (gradient,) = torch.autograd.grad((3 * log_std).sum(), head.log_std)
    assert gradient.tolist() == [3.0, 3.0]
    with torch.no_grad():
        assert torch.equal(head(torch.ones(1, 4)).log_std, log_std), "acting and training see one number"


def test_iql_may_be_surer_than_other_gaussians() -> None:
    policy = GaussianActorCritic(BOX, spaces.Box(-1.0, 1.0, (2,), np.float32), hidden_sizes=(4,))
    for value, expected in ((-7.0, -7.0), (-100.0, -10.0), (100.0, 2.0)):
        torch.nn.init.constant_(policy.actor[2].log_std, value)
        assert policy.distribution(torch.ones(1, 2)).log_std.tolist() == [expected] * 2


# Noise that is a function of what is seen

BOUNDED = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
POLICIES = [rl.Actor, rl.ActorCritic, rl.SquashedActorCritic]


def head(squashes: bool = False, sample_interval: int | None = None) -> StateDependentHead:
    """Return a head of two features and one action: mean 0.3, std .5 and .25."""
    made = StateDependentHead(2, 1, 0.0, squashes, sample_interval)
    with torch.no_grad():
        made.linear.weight.zero_()
        made.linear.bias.fill_(0.3)
        made.log_std.copy_(torch.tensor([[0.5], [0.25]]).log())
    return made


PHI = torch.tensor([[1.0, 2.0]])


def test_the_spread_by_hand() -> None:
    # 1^2 * .5^2 + 2^2 * .25^2 = .5, and 1e-6.
    distribution = head()(PHI)
    assert distribution.mean.item() == pytest.approx(0.3)
    assert distribution.log_std.exp().item() == pytest.approx(0.5**0.5, abs=1e-5)


def test_the_noise_by_hand() -> None:
    # theta = (.2 * .5, -.4 * .25): 1 * .1 + 2 * -.1 = -.1.
    state = torch.tensor([[1.0, 0.2, -0.4]])
    for squashes in (False, True):
        _, action, after = head(squashes).explore(PHI, state, generator())
        expected = 0.3 - 0.1
        assert action.item() == pytest.approx(np.tanh(expected) if squashes else expected, abs=1e-6)
        assert after.tolist() == [pytest.approx([1.0, 0.2, -0.4])]


def test_theta_is_kept_for_an_interval() -> None:
    made, g = head(sample_interval=3), generator()
    state, seen = made.initial_state(2), []
    for step in range(7):
        if step == 4:
            state[1] = 0  # its episode began anew
        _, action, state = made.explore(PHI.expand(2, 2), state, g)
        seen.append(action.flatten().tolist())
    one, other = ([row[i] for row in seen] for i in range(2))
    assert one[0] == one[1] == one[2] != one[3] == one[4] == one[5] != one[6]
    assert other[0] == other[1] == other[2] != other[3]
    assert other[3] != other[4] == other[5] == other[6]
    made, state = head(), made.initial_state(1)  # without an interval, for an episode
    _, first, state = made.explore(PHI, state, g)
    assert all(made.explore(PHI, state, g)[1] == first for _ in range(50))


def test_no_gradient_reaches_the_features_through_the_spread() -> None:
    features = PHI.clone().requires_grad_()
    made = head(squashes=True)
    made(features).log_std.sum().backward()  # type: ignore[no-untyped-call]  # torch's
    assert features.grad is None
    assert made.log_std.grad is not None
    assert (made.log_std.grad != 0).all()
    with torch.no_grad():
        made.linear.bias.fill_(9.0)
    assert made(PHI).mean.item() == 2.0, "clipped"


@pytest.mark.parametrize("cls", POLICIES)
def test_policies_explore_smoothly_and_forget_with_the_episode(cls: Any) -> None:
    envs = counting_envs(2, length=4, action_space=BOUNDED)
    rl.seed(1)
    policy = cls.for_envs(envs, hidden_sizes=(8,), activation=torch.nn.Tanh, use_sde=True)
    with torch.no_grad():
        policy.actor[0:2][1].layers[0].weight[:, 1] = 0  # the step is not seen, so that equal theta mean equal actions
    both = (envs.single_observation_space, envs.single_action_space)
    one = rl.Collector(policy, envs, rl.RolloutBuffer(8, 2, *both))
    one.seed(1)
    one.collect(num_steps=16)
    action = one.rollout().action
    for rows in (action[:4], action[4:]):
        torch.testing.assert_close(rows, rows[:1].expand(4, 2, 2))
    assert not torch.isclose(action[3], action[4]).any()
    assert not torch.isclose(action[0, 0], action[0, 1]).any(), "each env has its own"
    one.collect(num_steps=4, explore=False)
    assert torch.equal(one.rollout().action[0], policy.act(one.rollout().obs[0]))


@pytest.mark.parametrize("cls", POLICIES)
def test_acting_needs_no_memory(cls: Any) -> None:
    policy = cls.for_spaces(OBS_SPACE, BOUNDED, hidden_sizes=(8,), use_sde=True, sde_sample_interval=2)
    obs = torch.randn(5, 2, generator=generator(9))
    assert not policy.is_recurrent
    assert torch.equal(policy.act(obs), policy.act(obs))
    first = policy.act(obs, explore=True, generator=generator(1))
    assert torch.equal(policy.act(obs, explore=True, generator=generator(1)), first)
    assert not torch.equal(policy.act(obs, explore=True, generator=generator(2)), first)
    action, state = policy.act(obs, policy.initial_state(5), explore=True, generator=generator(1))
    assert torch.equal(action, first)
    assert state.shape == (5, 1 + 8 * 2)
    assert torch.equal(policy.act(obs, state, explore=True)[0], first), "the same theta"


@pytest.mark.parametrize("cls", POLICIES)
def test_log_probabilities_are_those_of_the_distribution(cls: Any) -> None:
    rl.seed(1)
    policy = cls.for_spaces(OBS_SPACE, BOUNDED, hidden_sizes=(8,), use_sde=True, log_std_init=-1.0)
    obs = torch.randn(5, 2, generator=generator(9))
    decision = policy.select_action(obs, explore=True, generator=generator())
    log_prob: Any = decision.extra["log_prob"]
    with torch.no_grad():
        expected = policy.distribution(obs).log_prob(policy.unscale(decision.action))
    torch.testing.assert_close(log_prob(), expected, rtol=1e-3, atol=1e-3)


def test_a_squashed_normal_starts_at_a_deviation() -> None:
    policy = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOUNDED, hidden_sizes=(8,), log_std_init=-1.5)
    obs = torch.randn(5, *OBS_SPACE.shape)
    distribution = policy.distribution(obs)
    assert torch.equal(distribution.log_std, torch.full_like(distribution.mean, -1.5))
    rl.seed(4)
    plain = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOUNDED, hidden_sizes=(8,))
    rl.seed(4)
    started = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOUNDED, hidden_sizes=(8,), log_std_init=-1.5)
    assert torch.equal(started.distribution(obs).mean, plain.distribution(obs).mean)
    assert plain.distribution(obs).log_std.std() > 0
    (started.distribution(obs).log_std * obs[:, :1]).sum().backward()
    assert started.actor[2].linear.weight.grad.any()
