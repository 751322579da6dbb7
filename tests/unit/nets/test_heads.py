"""Heads: which distribution an action space gets, and which spaces get none."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltrainer.errors import SpaceError
from rltrainer.nets import GaussianActorCritic
from rltrainer.nets.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical
from rltrainer.nets.heads import BernoulliHead, CategoricalHead, GaussianHead, SquashedGaussianHead, make_head

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_discrete_gets_a_categorical_from_its_start() -> None:
    head = make_head(4, spaces.Discrete(3, start=7), "Owner")
    assert isinstance(head, CategoricalHead)
    features = torch.randn(5, 4)
    distribution = head(features)
    assert isinstance(distribution, Categorical)
    assert torch.equal(distribution.logits, head.linear(features))
    assert distribution.start == 7


def test_multi_discrete_splits_its_logits() -> None:
    head = make_head(4, spaces.MultiDiscrete([2, 3], start=[0, 5]), "Owner")
    assert isinstance(head, CategoricalHead)
    features = torch.randn(5, 4)
    distribution = head(features)
    assert isinstance(distribution, MultiCategorical)
    logits = head.linear(features)
    assert torch.equal(distribution.parts[0].logits, logits[:, :2])
    assert torch.equal(distribution.parts[1].logits, logits[:, 2:])
    assert [part.start for part in distribution.parts] == [0, 5]


def test_multi_binary_gets_log_odds_of_its_flags() -> None:
    head = make_head(4, spaces.MultiBinary(3), "Owner")
    assert isinstance(head, BernoulliHead)
    features = torch.randn(5, 4)
    distribution = head(features)
    assert isinstance(distribution, Bernoulli)
    assert torch.equal(distribution.logits, head.linear(features))
    assert distribution.logits.shape == (5, 3)


def test_box_gets_a_gaussian_whose_spread_ignores_the_observation() -> None:
    head = make_head(4, BOX, "Owner")
    assert isinstance(head, GaussianHead)
    features = torch.randn(5, 4)
    distribution = head(features)
    assert isinstance(distribution, DiagonalGaussian)
    assert torch.equal(distribution.mean, head.linear(features))
    assert distribution.log_std.tolist() == [0.0, 0.0]


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


def test_squashed_head_makes_mean_and_spread_of_the_features() -> None:
    head = SquashedGaussianHead(4, 2)
    features = torch.randn(5, 4)
    both = head.linear(features)
    distribution = head(features)
    assert torch.equal(distribution.mean, both[:, :2])
    assert torch.equal(distribution.log_std, both[:, 2:])


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"a": spaces.Discrete(2)}),
        spaces.MultiBinary((2, 3)),
        spaces.Box(-1, 1, (2, 2), np.float32),
        spaces.Box(-1, 1, (), np.float32),
        spaces.MultiDiscrete(np.array([[2, 2], [2, 2]])),
    ],
)
def test_other_spaces_are_refused_in_the_owners_name(space: gym.Space[Any]) -> None:
    text = (
        "Owner.action_space: must be Discrete, or MultiDiscrete, MultiBinary or Box of one axis; "
        f"got {space!r} ({type(space).__name__}). Flatten it in a wrapper of the env."
    )
    with pytest.raises(SpaceError, match=f"^{re.escape(text)}$"):
        make_head(4, space, "Owner")
