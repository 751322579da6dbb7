"""What every policy does alike: shapes, bounds, greediness, randomness, and that acting leaves no trace."""

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.errors import ParamsError, SpaceError
from tests.batches import generator

OBS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE = spaces.Discrete(4, start=2)
MULTI = spaces.MultiDiscrete([2, 3], start=[0, 5])
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,), np.float32)
HALF_BOUNDED = spaces.Box(np.array([-np.inf, 0.0], np.float32), np.array([0.25, np.inf], np.float32))

Make = Callable[..., rl.Policy]
UNIT = (rl.DeterministicActorCritic, rl.SquashedActorCritic, rl.GaussianActorCritic, rl.FlowActorCritic)


def exploring(cls: type[rl.Policy], exploration: Any, **options: Any) -> Make:
    """Return a maker of the policy as its algorithm would set it up."""

    def make(observation_space: gym.Space[Any], action_space: gym.Space[Any], **more: Any) -> rl.Policy:
        policy = cls.for_spaces(observation_space, action_space, hidden_sizes=(8,), **options, **more)
        policy.exploration = exploration
        return policy

    return make


POLICIES = {
    "Actor discrete": (exploring(rl.Actor, None), DISCRETE),
    "Actor box": (exploring(rl.Actor, None), UNBOUNDED),
    "Actor bounded box": (exploring(rl.Actor, None), BOX),
    "ActorCritic discrete": (exploring(rl.ActorCritic, None), DISCRETE),
    "ActorCritic multi-discrete": (exploring(rl.ActorCritic, None), MULTI),
    "ActorCritic box": (exploring(rl.ActorCritic, None), UNBOUNDED),
    "ActorCritic half-bounded box": (exploring(rl.ActorCritic, None), HALF_BOUNDED),
    "QNetwork": (exploring(rl.QNetwork, rl.EpsilonGreedy(0.5)), DISCRETE),
    "QNetwork dueling": (exploring(rl.QNetwork, rl.EpsilonGreedy(0.5), dueling=True), DISCRETE),
    "DeterministicActorCritic": (exploring(rl.DeterministicActorCritic, rl.GaussianNoise(0.5)), BOX),
    "SquashedActorCritic": (exploring(rl.SquashedActorCritic, None), BOX),
    "FlowActorCritic": (exploring(rl.FlowActorCritic, None), BOX),
    "GaussianActorCritic": (exploring(rl.GaussianActorCritic, None), BOX),
}
every_policy = pytest.mark.parametrize(("make", "action_space"), POLICIES.values(), ids=POLICIES.keys())


def observations(num: int = 50) -> Tensor:
    return torch.randn(num, 3, generator=generator(99))


@every_policy
@pytest.mark.parametrize("explore", [False, True])
def test_actions_are_in_the_action_space(make: Make, action_space: gym.Space[Any], explore: bool) -> None:
    action = make(OBS, action_space).act(10 * observations(), explore=explore, generator=generator())
    assert action.shape == (50, *(action_space.shape or ()))
    assert action.dtype == (torch.float32 if isinstance(action_space, spaces.Box) else torch.int64)
    assert all(action_space.contains(one.numpy().astype(action_space.dtype)) for one in action)


@every_policy
def test_without_exploring_actions_are_fixed(make: Make, action_space: gym.Space[Any]) -> None:
    policy, obs = make(OBS, action_space), observations()
    before = torch.get_rng_state()
    greedy = policy.act(obs, generator=generator(1))
    assert torch.equal(policy.act(obs, generator=generator(2)), greedy)
    torch.testing.assert_close(policy.act(obs[:7]), greedy[:7])
    assert torch.equal(torch.get_rng_state(), before), "nothing random was drawn"


@every_policy
def test_exploring_draws_from_the_generator_alone(make: Make, action_space: gym.Space[Any]) -> None:
    policy, obs = make(OBS, action_space), observations()
    before = torch.get_rng_state()
    first = policy.act(obs, explore=True, generator=generator(1))
    assert torch.equal(policy.act(obs, explore=True, generator=generator(1)), first)
    assert not torch.equal(policy.act(obs, explore=True, generator=generator(2)), first)
    assert not torch.equal(policy.act(obs), first)
    assert torch.equal(torch.get_rng_state(), before)
    actions = []
    for _ in range(2):  # without a generator, torch's global one is used
        torch.manual_seed(5)
        actions.append(policy.act(obs, explore=True))
    assert torch.equal(*actions)


@every_policy
def test_acting_takes_no_gradients_and_changes_nothing(make: Make, action_space: gym.Space[Any]) -> None:
    policy = make(OBS, action_space, normalize_obs=True)
    before = copy.deepcopy(policy.state_dict())
    modes: list[bool] = []
    layer = policy.critic if isinstance(policy, rl.QNetwork) else policy.actor
    layer.register_forward_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    for explore in (False, True):
        action = policy.act(observations().requires_grad_(), explore=explore)
        assert not action.requires_grad
    assert modes == [False, False]
    assert torch.is_grad_enabled(), "only within act"
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())


@every_policy
def test_select_action_returns_the_sample_and_act_clips_it(make: Make, action_space: gym.Space[Any]) -> None:
    policy = make(OBS, action_space)
    sample = policy.select_action(observations(), explore=True, generator=generator()).action
    expected = sample
    if isinstance(action_space, spaces.Box):
        expected = sample.clamp(torch.tensor(action_space.low), torch.tensor(action_space.high))
        assert action_space is not BOX or isinstance(policy, UNIT) or not torch.equal(sample, expected)
    assert torch.equal(policy.act(observations(), explore=True, generator=generator()), expected)
    assert not sample.requires_grad


def test_bounds_that_float32_does_not_have_are_kept() -> None:
    # 0.1 and -0.1 lie beyond the float32 nearest to them.
    space = spaces.Box(-0.1, 0.1, (2,), np.float64)
    for cls in (rl.Actor, rl.SquashedActorCritic):
        policy = cls(OBS, space)
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.mul_(1e4)
        for explore in (False, True):
            action = policy.act(100 * observations(), explore=explore, generator=generator()).double().numpy()
            assert (action >= space.low).all()
            assert (action <= space.high).all()
    names = list(rl.Actor(OBS, BOX, hidden_sizes=()).state_dict())
    assert names == ["actor.2.log_std", "actor.2.linear.weight", "actor.2.linear.bias"], "bounds are no part of files"


@every_policy
def test_unscale_is_the_inverse_of_scale(make: Make, action_space: gym.Space[Any]) -> None:
    policy = make(OBS, action_space)
    action = policy.act(observations(), explore=True, generator=generator())
    torch.testing.assert_close(policy.scale(policy.unscale(action)), action)


@every_policy
def test_networks_and_statistics_are_in_the_state_and_used(make: Make, action_space: gym.Space[Any]) -> None:
    policy, other = make(OBS, action_space, normalize_obs=True), make(OBS, action_space, normalize_obs=True)
    assert policy.obs_normalizer is not None
    policy.obs_normalizer.update(5 + 3 * observations())
    other.load_state_dict(copy.deepcopy(policy.state_dict()))
    raw = 5 + 3 * observations()
    expected = policy.act(raw, explore=True, generator=generator())
    assert torch.equal(other.act(raw, explore=True, generator=generator()), expected)
    with torch.no_grad():
        assert torch.equal(policy.normalize(raw), policy.obs_normalizer(raw))
        decision = policy.decide(policy.normalize(raw), None, None, False, None)
    assert torch.equal(decision.action, policy.select_action(raw).action)
    policy.obs_normalizer = None
    assert policy.normalize(raw) is raw


def test_exploration_reads_progress_from_the_policy() -> None:
    policy = rl.QNetwork(OBS, DISCRETE)
    policy.exploration = rl.EpsilonGreedy(lambda progress: 1.0 - progress)
    greedy = policy.act(observations(200))
    assert not torch.equal(policy.act(observations(200), explore=True, generator=generator()), greedy)
    policy.progress = lambda: 1.0
    assert torch.equal(policy.act(observations(200), explore=True, generator=generator()), greedy)


@pytest.mark.parametrize("cls", UNIT)
def test_weights_of_a_policy_with_other_bounds_are_not_loaded(cls: type[rl.Policy]) -> None:
    # They stand for shares of the range: on a wider one they would never use the rest of it.
    wide = spaces.Box(2 * BOX.low, 2 * BOX.high)
    own, other, same = (cls.for_spaces(OBS, space, hidden_sizes=(4,)) for space in (BOX, wide, BOX))
    before = copy.deepcopy(own.state_dict())
    text = r"action_low: expected \[-1.0, 0.0\], found \[-2.0, 0.0\]: actions have other bounds"
    end = r"\. The policy is unchanged\.$"
    with pytest.raises(SpaceError, match=rf"^{cls.__name__}\.load_state_dict: {text}{end}"):
        own.load_state_dict(other.state_dict())
    assert all(torch.equal(own.state_dict()[name], before[name]) for name in before)
    nested = nn.ModuleDict({"policy": copy.deepcopy(own)})
    with pytest.raises(SpaceError, match=rf"^{cls.__name__}\.load_state_dict: policy\.{text}{end}"):
        nested.load_state_dict({f"policy.{name}": value for name, value in other.state_dict().items()})
    assert all(torch.equal(nested["policy"].state_dict()[name], before[name]) for name in before)
    own.load_state_dict(same.state_dict())
    assert all(torch.equal(own.state_dict()[name], same.state_dict()[name]) for name in before)


# Policies that are asked or changed in ways they do not follow
UNIT_SPACE = spaces.Box(-1.0, 1.0, (2,), np.float32)


def made(space: gym.Space[Any] = OBS) -> rl.ActorCritic:
    return rl.ActorCritic.for_spaces(space, UNIT_SPACE, hidden_sizes=(4,))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda p: p.double(), "float64"), (lambda p: p.half(), "float16"), (lambda p: p.bfloat16(), "bfloat16"),
        (lambda p: p.to(torch.float64), "float64"), (lambda p: p.type(torch.float64), "float64"),
    ],
)  # fmt: skip
def test_a_number_format_is_set_by_its_own_method(change: Any, name: str) -> None:
    policy = made()
    text = rf"^ActorCritic: must keep its number format, .*; got {name}\. Write policy\.set_weight_dtype\(torch\.float"
    with pytest.raises(ParamsError, match=text):
        change(policy)
    assert all(p.dtype == torch.float32 for p in policy.parameters())
    policy.float().to("cpu").to(torch.float32)
    policy.set_weight_dtype(torch.float64)
    policy.double()
    with pytest.raises(ParamsError, match="got float32"):
        policy.float()


@pytest.mark.parametrize("ask", ["attach", "update"])
def test_an_algorithms_policy_is_not_replaced(ask: str) -> None:
    policy = rl.QNetwork.for_spaces(OBS, spaces.Discrete(2), hidden_sizes=(4,))
    algorithm = rl.DQN(policy)
    algorithm.policy = rl.QNetwork.for_spaces(OBS, spaces.Discrete(2), hidden_sizes=(4,))
    given: Any = rl.UpdatePlan() if ask == "attach" else None
    text = r"^DQN\.policy: must stay the one that the algorithm was built with; got another QNetwork\. Copy weights in"
    with pytest.raises(ParamsError, match=text):
        getattr(algorithm, ask)(given)
    algorithm.policy = policy
    algorithm.attach(rl.UpdatePlan())
