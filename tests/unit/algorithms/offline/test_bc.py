"""Behaviour cloning: which policies it takes, in which scale it learns, and what it leaves alone."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.nets.distributions import DiagonalGaussian
from tests import batches

OBS = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
BOX = gym.spaces.Box(np.array([-2.0], np.float32), np.array([6.0], np.float32))
DISCRETE = gym.spaces.Discrete(3, start=4)


def transitions(action: torch.Tensor) -> rl.Transitions:
    obs = torch.linspace(-1, 1, len(action)).unsqueeze(1)
    return batches.transitions(obs, action, torch.zeros(len(action)))


@pytest.mark.parametrize("cls", [rl.Actor, rl.ActorCritic, rl.SquashedActorCritic, rl.GaussianActorCritic])
def test_every_stochastic_policy_learns_actions_in_the_envs_scale(cls: Any) -> None:
    rl.seed(1)
    policy = cls.for_spaces(OBS, BOX, hidden_sizes=(16,))
    algorithm = rl.BC(policy, rl.BCParams(lr=1e-2))
    data = transitions(torch.full((32, 1), 4.0))
    for _ in range(300):
        algorithm.update(data)
    assert policy.act(data.obs).flatten().tolist() == pytest.approx([4.0] * 32, abs=0.3)


@pytest.mark.parametrize("cls", [rl.Actor, rl.ActorCritic])
def test_choices_are_learned_from_their_start(cls: Any) -> None:
    rl.seed(1)
    policy = cls.for_spaces(OBS, DISCRETE, hidden_sizes=(16,))
    algorithm = rl.BC(policy, rl.BCParams(lr=1e-2))
    data = transitions(torch.full((32,), 6))
    for _ in range(50):
        algorithm.update(data)
    assert policy.act(data.obs).tolist() == [6] * 32


def test_the_loss_by_hand() -> None:
    """A Gaussian of mean 0 and standard deviation 1 in (-1, 1), which is 2 +- 4 in the env's scale."""
    policy = rl.GaussianActorCritic.for_spaces(OBS, BOX, hidden_sizes=(4,))
    with torch.no_grad():
        for parameter in policy.actor.parameters():
            parameter.zero_()
    loss = rl.BC(policy).update(transitions(torch.tensor([[2.0], [4.0]]))).floats()["loss"]
    # -log N(0), -log N(0.5): 0.5 log(2 pi) = 0.9189, and 0.125 more
    assert loss == pytest.approx(0.9189 + 0.0625, abs=1e-4)


def test_a_shared_encoder_is_trained_with_the_actor_and_the_critic_is_not() -> None:
    image = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    policy = rl.ActorCritic.for_spaces(image, DISCRETE, hidden_sizes=(4,), share_encoder=True)
    before = {name: value.clone() for name, value in policy.named_parameters()}
    data = transitions(torch.full((4,), 5))
    obs = torch.randint(0, 256, (4, 36, 36, 1), dtype=torch.uint8)
    data.obs = data.next_obs = obs
    rl.BC(policy).update(data)
    moved = {name for name, value in policy.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.startswith("actor.")}


def test_a_policy_of_ones_own_needs_a_distribution_and_an_actor() -> None:
    class Own(rl.Policy):
        def __init__(self, *spaces: Any) -> None:
            super().__init__(*spaces)
            self.actor = torch.nn.Linear(1, 1)

        def distribution(self, obs: torch.Tensor) -> DiagonalGaussian:
            return DiagonalGaussian(self.actor(obs), torch.zeros(1))

        def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> rl.Decision:
            return rl.Decision(self.distribution(obs).mode())

    policy = Own(OBS, BOX)
    algorithm = rl.BC(policy, rl.BCParams(lr=0.1))
    for _ in range(200):
        algorithm.update(transitions(torch.full((8, 1), 3.0)))
    assert policy.act(torch.zeros(1, 1)).item() == pytest.approx(3.0, abs=0.1)
