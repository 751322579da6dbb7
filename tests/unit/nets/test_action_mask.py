"""What is not allowed is never chosen, has no probability, and is seen by no network."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import rltrainer as rl
from rltrainer.nets.distributions import Categorical
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.exploration import allowed
from rltrainer.nets.normalizer import ObsNormalizer, running_moments
from tests.batches import generator

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
DISCRETE = spaces.Discrete(3, start=5)
MULTI = spaces.MultiDiscrete([2, 3], start=[0, 10])
MASKS: dict[str, Any] = {
    "MultiBinary": spaces.MultiBinary(3),
    "bool": spaces.Box(0, 1, (3,), np.bool_),
    "integers": spaces.Box(0, 1, (3,), np.int64),
    "floats": spaces.Box(0.0, 1.0, (3,), np.float32),
}


def with_mask(leaf: Any, observation: Any = BOX) -> spaces.Dict:
    return spaces.Dict({"action_mask": leaf, "observation": observation})


def observe(mask: Any, dtype: torch.dtype = torch.int8) -> dict[str, Tensor]:
    mask = torch.tensor(mask, dtype=dtype)
    return {"action_mask": mask, "observation": torch.randn(len(mask), 2, generator=generator(9))}


def test_probabilities_are_over_what_is_allowed() -> None:
    # log-softmax of [1, 3]: 1 - log(e + e^3) = -2.126928, 3 - log(e + e^3) = -0.126928; p = .119203, .880797.
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    distribution = Categorical(logits).masked(torch.tensor([[True, False, True]]))
    log_prob = torch.stack([distribution.log_prob(torch.tensor([a])) for a in (0, 2)], 1)
    torch.testing.assert_close(log_prob, torch.tensor([[-2.126928, -0.126928]]))
    # .119203 * 2.126928 + .880797 * .126928 = 0.365334; what is not allowed adds nothing.
    torch.testing.assert_close(distribution.entropy(), torch.tensor([0.365334]))
    assert distribution.mode().tolist() == [2]
    assert distribution.sample(generator()).item() in (0, 2)
    (gradient,) = torch.autograd.grad((distribution.log_prob(torch.tensor([0])) + distribution.entropy()).sum(), logits)
    assert gradient[0, 1] == 0
    assert gradient.isfinite().all()
    assert (gradient[0, [0, 2]] != 0).all()
    uniform = Categorical(torch.tensor([[0.0, 9.0, 0.0]])).masked(torch.tensor([[True, False, True]]))
    # KL(.5, .5 || .119203, .880797) = .5 log(.5 / .119203) + .5 log(.5 / .880797) = 0.433781.
    torch.testing.assert_close(uniform.kl(distribution), torch.tensor([0.433781]))


def test_choices_that_are_not_allowed_are_drawn_anew_evenly() -> None:
    mask = torch.tensor([[1, 0, 1]]).repeat(6000, 1)
    action = torch.arange(6000) % 3 + 5
    new = allowed(action, mask.bool(), DISCRETE, generator())
    kept = action != 6
    assert torch.equal(new[kept], action[kept])
    drawn = new[~kept].bincount(minlength=8)[5:].tolist()
    # 2,000 draws from two: 1,000 each, within four standard deviations, 4 * sqrt(500) = 89.
    assert drawn[1] == 0
    assert abs(drawn[0] - 1000) < 89


@pytest.mark.parametrize("leaf", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("cls", [rl.Actor, rl.ActorCritic, rl.QNetwork])
@pytest.mark.parametrize("normalize_obs", [False, True])
def test_policies_choose_what_is_allowed(cls: Any, leaf: Any, normalize_obs: bool) -> None:
    policy = cls.for_spaces(with_mask(leaf), DISCRETE, hidden_sizes=(8,), normalize_obs=normalize_obs)
    policy.exploration = rl.EpsilonGreedy(0.7)
    mask = [[0, 1, 0], [1, 0, 1], [0, 0, 1], [1, 1, 0]] * 25
    dtype = {"b": torch.bool, "i": torch.int64, "f": torch.float32}[leaf.dtype.kind]
    obs = observe(mask, torch.int8 if leaf is MASKS["MultiBinary"] else dtype)
    for explore in (False, True):
        action = policy.act(obs, explore=explore, generator=generator())
        assert all(row[a - 5] for row, a in zip(mask, action.tolist(), strict=True))
        assert len(set(action.tolist())) > 1


def test_several_choices_and_flags_are_masked_in_policies_and_warm_up() -> None:
    policy = rl.ActorCritic.for_spaces(with_mask(spaces.MultiBinary(5)), MULTI, hidden_sizes=(8,))
    action = policy.act(observe([[1, 0, 0, 1, 0]] * 20), explore=True, generator=generator())
    assert action.tolist() == [[0, 11]] * 20
    flags = spaces.MultiBinary(2)
    policy = rl.ActorCritic.for_spaces(with_mask(spaces.MultiBinary(4)), flags, hidden_sizes=(8,))
    mask = [[1, 0, 0, 1]] * 20  # the first must be 0, the second 1
    assert policy.act(observe(mask), explore=True, generator=generator()).tolist() == [[0, 1]] * 20
    drawn = torch.randint(2, (20, 2), generator=generator())
    assert allowed(drawn, torch.tensor(mask).bool(), flags, generator()).tolist() == [[0, 1]] * 20


def test_no_network_sees_the_mask() -> None:
    space = with_mask(spaces.MultiBinary(3))
    assert Encoder(space).out_features == 2
    policy = rl.ActorCritic.for_spaces(space, DISCRETE, hidden_sizes=(8,), normalize_obs=True)
    assert len(running_moments(policy)) == 1
    some, other = observe([[1, 1, 1]]), observe([[1, 0, 0]])
    assert torch.equal(policy.value(some), policy.value(other))
    assert torch.equal(policy.actor(some).logits, policy.actor(other).logits)
    normalizer, obs = ObsNormalizer(with_mask(MASKS["floats"])), observe([[0, 1, 1], [1, 0, 1]], torch.float32)
    normalizer.update(obs)
    assert torch.equal(normalizer(obs)["action_mask"], obs["action_mask"])


def test_both_ways_to_evaluate_obey() -> None:
    obs = observe([[1, 0, 0], [0, 1, 1]])
    for share in (False, True):
        space = with_mask(spaces.MultiBinary(3))
        policy = rl.ActorCritic.for_spaces(space, DISCRETE, hidden_sizes=(8,), share_encoder=share)
        distribution, value = policy.evaluate(obs)
        assert distribution.log_prob(torch.tensor([5, 5])).tolist() == [0.0, pytest.approx(-1e8, rel=1e-3)]
        assert torch.equal(value, policy.value(obs))


def test_action_values_of_what_is_not_allowed_are_never_the_best() -> None:
    policy = rl.QNetwork.for_spaces(with_mask(spaces.MultiBinary(3)), DISCRETE, hidden_sizes=(8,))
    obs = observe([[1, 0, 0], [0, 1, 1]])
    with torch.no_grad():
        q, free = policy.q_values(obs), policy.critic(obs)
    assert torch.equal(q[0], torch.tensor([free[0, 0], -1e8, -1e8]))
    assert torch.equal(policy.q_values(obs, free + 1)[1], torch.tensor([-1e8, free[1, 1] + 1, free[1, 2] + 1]))


@pytest.mark.parametrize("double", [False, True])
def test_targets_are_made_with_what_the_next_observation_allows(double: bool) -> None:
    policy = rl.QNetwork.for_spaces(with_mask(spaces.MultiBinary(3)), spaces.Discrete(3), hidden_sizes=())
    algorithm = rl.DQN(policy, rl.DQNParams(double=double))
    head: Any = policy.critic[2]
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([1.0, 9.0, 3.0]))
        algorithm.target_critic.load_state_dict(copy.deepcopy(algorithm.target_critic.state_dict()))
        algorithm.target_critic.network[2].bias.copy_(torch.tensor([2.0, 9.0, 4.0]))
        algorithm.target_critic.network[2].weight.zero_()
    obs, next_obs = observe([[1, 1, 1]] * 2), observe([[1, 0, 1], [1, 0, 0]])
    one = torch.ones(2)
    batch = rl.Transitions(
        obs, one.long(), one, next_obs, one.bool(), one.bool(), 0.5 * one, one.long(), one
    )  # the value 9 of the second action would give 5.5
    assert algorithm.target(batch).tolist() == [1 + 0.5 * 4, 1 + 0.5 * 2]


def test_a_policy_of_ones_own_is_given_the_mask() -> None:
    seen: list[Any] = []

    class Own(rl.Policy):
        def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> rl.Decision:
            seen.append(mask)
            return rl.Decision(mask.float().argmax(1))

    obs = observe([[0, 1, 1], [1, 0, 0]])
    own: gym.Space[Any] = with_mask(spaces.MultiBinary(3))
    assert Own(own, spaces.Discrete(3)).act(obs).tolist() == [1, 0]
    assert seen[0].dtype == torch.bool
    assert torch.equal(seen[0], obs["action_mask"].bool())
