"""Dropout on policy: old probabilities and values are those of the policy that acted, new ones have units left out."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.nets.modes import eval_mode
from tests.fakes import counting_envs

BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
MAKERS: dict[str, Any] = {
    "ppo": (rl.PPO, rl.ActorCritic, rl.PPOParams(lr=1e-12, value_clip=0.1)),
    "a2c": (rl.A2C, rl.ActorCritic, rl.A2CParams(lr=1e-12)),
    "impala": (rl.IMPALA, rl.ActorCritic, rl.IMPALAParams(lr=1e-12)),
    "recurrent_ppo": (rl.RecurrentPPO, rl.RecurrentActorCritic, rl.PPOParams(lr=1e-12)),
    "trpo": (rl.TRPO, rl.ActorCritic, rl.TRPOParams()),
}


def make(name: str) -> tuple[Any, rl.Rollout]:
    """Return an algorithm with dropout, and a rollout of its policy."""
    algorithm_class, policy_class, params = MAKERS[name]
    rl.seed(3)
    envs = counting_envs(2, action_space=BOX)
    algorithm = algorithm_class(policy_class.for_envs(envs, rl.NetParams(hidden_sizes=(32,), dropout=0.2)), params)
    policy = algorithm.policy
    with torch.no_grad():  # weights of a trained size, so that units that are left out matter
        for parameter in policy.actor.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    columns = {key: policy.columns[key] for key in ("log_prob", *algorithm.columns)}
    buffer = rl.RolloutBuffer(32, 2, policy.observation_space, BOX, extra=columns)
    collector = rl.Collector(policy, envs, buffer)
    collector.seed(1)
    collector.collect(num_steps=64)
    return algorithm, collector.rollout()


def processed(algorithm: Any, rollout: rl.Rollout) -> tuple[Any, list[bool]]:
    """Return what an update makes of a rollout, and the modes in which its gradient steps run."""
    seen, process, step = [], algorithm.process, algorithm.gradient_step
    algorithm.process = lambda rollout: seen.append(process(rollout)) or seen[-1]
    algorithm.gradient_step = lambda batch: seen.append(algorithm.policy.critic.training) or step(batch)
    algorithm.update(rollout, None, 2)
    return seen[0], seen[1:]


@pytest.mark.parametrize("name", MAKERS)
def test_old_values_are_those_of_the_policy_that_acted(name: str) -> None:
    algorithm, rollout = make(name)
    expecting = copy.deepcopy(algorithm)
    if name.endswith("ppo"):
        del rollout.extra["log_prob"]  # asked of the policy then
    with torch.no_grad(), eval_mode(expecting.policy):
        expected = expecting.process(rollout)
    samples, modes = processed(algorithm, rollout)
    assert modes == [True, True]
    for field in ("value", "log_prob", "advantage", "return_"):
        torch.testing.assert_close(getattr(samples, field), getattr(expected, field))
    assert all(module.training for module in algorithm.policy.modules())


def test_the_policy_in_eval_mode_begins_at_a_ratio_of_one() -> None:
    algorithm, rollout = make("ppo")
    assert float(algorithm.update(rollout, None, 1).metrics["approx_kl"]) > 0.01  # units are left out of new ones only
    algorithm.policy.eval()
    assert float(algorithm.update(rollout, None, 1).metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-6)


def test_trpo_takes_a_step_with_dropout() -> None:
    algorithm, rollout = make("trpo")
    result = algorithm.update(rollout, None, 1)
    assert float(result.metrics["step_scale"]) > 0
    assert float(result.metrics["kl"]) == pytest.approx(0.01, rel=0.5)


def test_a_copy_looks_at_its_own_policy() -> None:
    algorithm, rollout = make("ppo")
    again = copy.deepcopy(algorithm)
    algorithm.policy.eval()
    samples, modes = processed(again, rollout)
    assert modes == [True, True]
    torch.testing.assert_close(samples.log_prob, rollout.extra["log_prob"])
