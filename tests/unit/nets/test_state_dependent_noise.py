"""Noise that is a function of what is seen: its spread, its memory, and the policies that explore by it."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.nets.heads import StateDependentHead
from tests.fakes import OBS_SPACE, counting_envs

BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
POLICIES = [rl.Actor, rl.ActorCritic, rl.SquashedActorCritic]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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


def test_noise_is_as_wide_as_the_distribution_says() -> None:
    made = head()
    distribution, action, _ = made.explore(PHI.expand(20_000, 2), made.initial_state(20_000), generator())
    assert action.mean().item() == pytest.approx(0.3, abs=0.02)
    assert action.std().item() == pytest.approx(distribution.log_std[0].exp().item(), rel=0.03)


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


def test_theta_is_kept_for_an_episode() -> None:
    made, g = head(), generator()
    state = made.initial_state(1)
    actions = []
    for _ in range(50):
        _, action, state = made.explore(PHI, state, g)
        actions.append(action.item())
    assert len(set(actions)) == 1


def test_no_gradient_reaches_the_features_through_the_spread() -> None:
    features = PHI.clone().requires_grad_()
    made = head(squashes=True)
    made(features).log_std.sum().backward()  # type: ignore[no-untyped-call]  # torch's
    assert features.grad is None
    assert made.log_std.grad is not None
    assert (made.log_std.grad != 0).all()


def test_means_that_are_squashed_are_clipped() -> None:
    made = head(squashes=True)
    with torch.no_grad():
        made.linear.bias.fill_(9.0)
    assert made(PHI).mean.item() == 2.0


@pytest.mark.parametrize("cls", POLICIES)
def test_policies_explore_smoothly_and_forget_with_the_episode(cls: Any) -> None:
    envs = counting_envs(2, length=4, action_space=BOX)
    rl.seed(1)
    policy = cls.for_envs(envs, hidden_sizes=(8,), activation=torch.nn.Tanh, use_sde=True)
    with torch.no_grad():
        policy.actor[0:2][1].layers[0].weight[:, 1] = 0  # the step is not seen, so that equal theta mean equal actions
    spaces = (envs.single_observation_space, envs.single_action_space)
    one = rl.Collector(policy, envs, rl.RolloutBuffer(8, 2, *spaces))
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
    policy = cls.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), use_sde=True, sde_sample_interval=2)
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
    policy = cls.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), use_sde=True, log_std_init=-1.0)
    obs = torch.randn(5, 2, generator=generator(9))
    decision = policy.select_action(obs, explore=True, generator=generator())
    log_prob: Any = decision.extra["log_prob"]
    with torch.no_grad():
        expected = policy.distribution(obs).log_prob(policy.unscale(decision.action))
    torch.testing.assert_close(log_prob(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"use_sde": 1}, r"use_sde: must be True or False; got 1 \(int\)"),
        ({"use_sde": True, "sde_sample_interval": 0}, "sde_sample_interval: must be a positive integer or None; got 0"),
        ({"sde_sample_interval": 4}, "sde_sample_interval: must be None without use_sde=True; got 4"),
    ],
)
@pytest.mark.parametrize("cls", POLICIES)
def test_options(cls: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ParamsError, match=f"^{cls.__name__}.{text}"):
        cls.for_spaces(OBS_SPACE, BOX, **options)


def test_choices_have_no_such_noise() -> None:
    text = r"^ActorCritic.use_sde: must be False where actions are no Box, but Discrete\(2\); got True \(bool\)"
    with pytest.raises(ParamsError, match=text):
        rl.ActorCritic.for_spaces(OBS_SPACE, spaces.Discrete(2), use_sde=True)


def test_a_spread_that_nothing_starts_with_is_an_error() -> None:
    text = "^SquashedActorCritic.log_std_init: is where the noise of use_sde=True starts; got -2.0"
    with pytest.raises(ParamsError, match=text):
        rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, log_std_init=-2.0)


@pytest.mark.parametrize(
    ("algorithm", "cls"),
    [
        (rl.PPO, rl.ActorCritic), (rl.A2C, rl.ActorCritic), (rl.TRPO, rl.ActorCritic), (rl.SAC, rl.SquashedActorCritic),
        (rl.TQC, rl.SquashedActorCritic), (rl.BC, rl.Actor), (rl.IMPALA, rl.ActorCritic),
    ],
)  # fmt: skip
def test_algorithms_train_its_spread(algorithm: Any, cls: Any) -> None:
    envs: gym.vector.VectorEnv[Any, Any, Any] = counting_envs(2, length=4, action_space=BOX)
    options = {"num_outputs": 5, "num_critics": 2} if algorithm is rl.TQC else {}
    policy = cls.for_envs(envs, hidden_sizes=(8,), use_sde=True, sde_sample_interval=2, log_std_init=-1.0, **options)
    agent = algorithm(policy)
    before = policy.actor[2].log_std.detach().clone()
    spaces = (envs.single_observation_space, envs.single_action_space)
    is_on_policy = isinstance(agent, rl.OnPolicyAlgorithm)
    extra = {name: policy.columns[name] for name in agent.columns}
    buffer: Any = rl.ReplayBuffer(16, *spaces, num_envs=2)
    buffer = rl.RolloutBuffer(8, 2, *spaces, extra=extra) if is_on_policy else buffer
    one = rl.Collector(policy, envs, buffer)
    one.collect(num_steps=16)
    if is_on_policy:
        agent.update(one.rollout(), batch_size=8, repeat=2)
    else:
        agent.update(buffer.sample(16))
    assert (policy.actor[2].log_std != before).any()
