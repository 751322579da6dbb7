"""Errors of an algorithm's constructor and of `run_training`."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError
from tests.fakes import OBS_SPACE, counting_envs, tiny_actor_critic

BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
ENVS = counting_envs()
ACTOR_CRITIC = tiny_actor_critic(ENVS)
DETERMINISTIC = rl.DeterministicActorCritic.for_envs(counting_envs(action_space=BOX), hidden_sizes=(4,))


def test_hints_on_attributes_hide_neither_errors_nor_attributes_of_a_users() -> None:
    class Own(rl.A2C):
        @property
        def broken(self) -> Any:
            return self.params.nothing  # type: ignore[attr-defined]  # what is tested

        def learn(self) -> int:
            return 3

    algorithm = Own(ACTOR_CRITIC)
    assert (algorithm.learn(), hasattr(algorithm, "predict"), getattr(algorithm, "fit", 4)) == (3, False, 4)
    for name, text in ("broken", "'A2CParams' object has no attribute 'nothing'"), ("nothing", "'Own' object has no"):
        with pytest.raises(AttributeError, match=f"^{text}"):
            getattr(algorithm, name)


def test_params_of_a_subclass_and_none() -> None:
    assert rl.A2C(ACTOR_CRITIC, rl.PPOParams()).params == rl.PPOParams()
    assert rl.TD3BC(DETERMINISTIC).params == rl.TD3BCParams()
    assert type(rl.DoubleDQN(rl.QNetwork.for_envs(ENVS)).params) is rl.DQNParams


BOXED = [(rl.SAC, rl.SquashedActorCritic), (rl.TD3, rl.DeterministicActorCritic)]


@pytest.mark.parametrize(("cls", "policy_cls"), BOXED)
def test_an_algorithm_for_other_bounds_of_actions_is_not_loaded(tmp_path: Any, cls: Any, policy_cls: Any) -> None:
    spaces = [gym.spaces.Box(-high, high, (1,), np.float32) for high in (1.0, 2.0)]
    own, other = (cls(policy_cls.for_spaces(OBS_SPACE, space, hidden_sizes=(4,))) for space in spaces)
    other.save(tmp_path / "other.safetensors")
    before = copy.deepcopy(own.policy.state_dict())
    with pytest.raises(CheckpointError, match=rf"{cls.__name__}.policy.action_low: expected \[-1.0\], found \[-2.0\]"):
        own.load(tmp_path / "other.safetensors")
    assert all(torch.equal(own.policy.state_dict()[name], before[name]) for name in before)
