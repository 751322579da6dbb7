"""Masks and state-dependent noise are in the graph: compiled steps are the uncompiled ones."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

import rltrainer as rl
from tests.compile.test_compiled_updates import _fresh_compiler
from tests.compile.traced import _traced_only
from tests.resume.steered import steered_envs

pytestmark = pytest.mark.full  # every test compiles

__all__ = ["_fresh_compiler", "_traced_only"]  # fixtures: every test here starts with nothing compiled

NOISY = {"use_sde": True, "log_std_init": -1.0}
CASES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "masked ppo": (rl.PPO, rl.ActorCritic, "masked", {"share_encoder": True}),
    "masked dqn": (rl.DQN, rl.QNetwork, "masked", {}),
    "noisy ppo": (rl.PPO, rl.ActorCritic, "plain", NOISY),
    "noisy sac": (rl.SAC, rl.SquashedActorCritic, "plain", NOISY),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("_traced_only")
def test_traced_steps_are_the_eager_ones(name: str) -> None:
    assert_compiled_steps_are_the_eager_ones(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked ppo", "noisy sac"])
def test_steps_in_cpp_are_the_eager_ones(name: str) -> None:
    assert_compiled_steps_are_the_eager_ones(name)


def assert_compiled_steps_are_the_eager_ones(name: str) -> None:
    algorithm_class, policy_class, kind, options = CASES[name]
    made = []
    for is_compiled in (False, True):
        rl.seed(5)
        envs = steered_envs(2, gym.spaces.Box(-1.0, 1.0, (2,), np.float32), seed=1, kind=kind, backend="sync")
        algorithm = algorithm_class(policy_class.for_envs(envs, hidden_sizes=(8,), **options))
        algorithm.attach(rl.UpdatePlan(runtime=rl.RuntimeParams(compile=is_compiled)))
        algorithm.seed(3)
        is_on_policy = isinstance(algorithm, rl.OnPolicyAlgorithm)
        spaces = (envs.single_observation_space, envs.single_action_space)
        buffer: Any = rl.RolloutBuffer(16, 2, *spaces) if is_on_policy else rl.ReplayBuffer(32, *spaces, 2, seed=1)
        one = rl.Collector(algorithm.policy, envs, buffer)
        one.seed(2)
        one.collect(num_steps=32)
        for _ in range(3):
            if is_on_policy:
                algorithm.update(one.rollout(), batch_size=16, repeat=1)
            else:
                algorithm.update(buffer.sample(16))
        assert algorithm.is_compiled == is_compiled
        made.append(algorithm)
    assert not counters["graph_break"]
    for (key, eager), compiled in zip(made[0].policy.named_parameters(), made[1].policy.parameters(), strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-4, msg=key)
