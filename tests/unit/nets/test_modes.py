"""Eval mode for acting: what is switched, what is put back, and which policies need no look at all."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.nets.modes import EvalMode, _depends_on_mode

OBS = gym.spaces.Dict(
    image=gym.spaces.Box(0, 255, (36, 36, 1), np.uint8),
    choice=gym.spaces.Discrete(3),
    numbers=gym.spaces.Box(-1, 1, (2,), np.float32),
)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
DISCRETE, MULTI = gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 3])
STOCK = [
    (rl.Actor, DISCRETE, {}), (rl.ActorCritic, BOX, {"normalize_reward": True}),
    (rl.ActorCritic, MULTI, {"share_encoder": True}), (rl.QNetwork, DISCRETE, {"dueling": True}),
    (rl.DeterministicActorCritic, BOX, {"activation": nn.LayerNorm}),
    (rl.SquashedActorCritic, BOX, {"activation": nn.PReLU}), (rl.GaussianActorCritic, BOX, {"activation": nn.SiLU}),
]  # fmt: skip


def modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


@pytest.mark.parametrize(("cls", "space", "options"), STOCK)
def test_policies_of_ordinary_layers_are_left_alone(cls: Any, space: Any, options: dict[str, Any]) -> None:
    """None of their classes is missing in the list of those without modes, which would cost time at every step."""
    policy = cls.for_spaces(OBS, space, hidden_sizes=(8,), normalize_obs=True, **options)
    assert not _depends_on_mode(policy)
    with EvalMode(policy).while_on():
        assert all(modes(policy))


def with_dropout() -> rl.ActorCritic:
    return rl.ActorCritic.for_spaces(OBS, DISCRETE, hidden_sizes=(8,), activation=lambda: nn.Dropout(0.5))


class OwnPolicy(rl.ActorCritic):
    """May do anything with its mode."""


def with_hook(register: str) -> rl.ActorCritic:
    policy = rl.ActorCritic.for_spaces(OBS, DISCRETE, hidden_sizes=(8,))
    getattr(policy.actor[1].layers[0], register)(lambda *_: None)
    return policy


def inserted() -> rl.ActorCritic:
    policy = rl.ActorCritic.for_spaces(OBS, DISCRETE, hidden_sizes=(8,))
    assert not _depends_on_mode(policy)
    policy.actor.insert(2, nn.Dropout(0.5))
    return policy


def spectral() -> rl.ActorCritic:
    policy = rl.ActorCritic.for_spaces(OBS, DISCRETE, hidden_sizes=(8,))
    nn.utils.parametrizations.spectral_norm(policy.actor[1].layers[0])
    return policy


@pytest.mark.parametrize("make", [
    with_dropout,
    inserted,
    spectral,
    lambda: OwnPolicy.for_spaces(OBS, DISCRETE, hidden_sizes=(8,)),
    lambda: with_hook("register_forward_hook"),
    lambda: with_hook("register_forward_pre_hook"),
], ids=["dropout", "inserted later", "parametrized", "own class", "hook", "pre-hook"])  # fmt: skip
def test_every_module_is_switched_where_one_may_look_at_its_mode(make: Any) -> None:
    policy = make()
    policy.critic.eval()
    before = modes(policy)
    with EvalMode(policy).while_on():
        assert not any(modes(policy))
    assert modes(policy) == before


def test_a_part_that_was_taken_out_depends_on_nothing() -> None:
    policy = rl.ActorCritic.for_spaces(OBS, DISCRETE, hidden_sizes=(8,), normalize_obs=True)
    policy.obs_normalizer = None
    assert not _depends_on_mode(policy)


def test_act_uses_the_modes_that_the_user_set() -> None:
    policy = rl.Actor.for_spaces(BOX, BOX, hidden_sizes=(32,), activation=lambda: nn.Dropout(0.5))
    obs = torch.ones(1, 2)
    assert not torch.equal(policy.act(obs), policy.act(obs))
    policy.eval()
    assert torch.equal(policy.act(obs), policy.act(obs))
