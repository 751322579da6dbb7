"""Masks and state-dependent noise are in the graph: compiled steps are the uncompiled ones."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

import rltrainer as rl
from tests.compile.test_compiled_updates import _fresh_compiler

pytestmark = pytest.mark.full  # every test compiles

__all__ = ["_fresh_compiler"]  # a fixture: every test here starts with nothing compiled

SEEN = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
MASKED = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), seen=SEEN)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
NOISY = {"use_sde": True, "log_std_init": -1.0}
CASES: dict[str, tuple[Any, Any, Any, Any, dict[str, Any]]] = {
    "masked ppo": (rl.PPO, rl.ActorCritic, MASKED, gym.spaces.Discrete(3), {"share_encoder": True}),
    "masked dqn": (rl.DQN, rl.QNetwork, MASKED, gym.spaces.Discrete(3), {}),
    "noisy ppo": (rl.PPO, rl.ActorCritic, SEEN, BOX, NOISY),
    "noisy sac": (rl.SAC, rl.SquashedActorCritic, SEEN, BOX, NOISY),
}


class Sampled(gym.Env[Any, Any]):
    """Observes samples of its space, of masks those that allow two of three; episodes of 5 steps."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.num_steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.num_steps += 1
        return self._obs(), float(np.sum(action)), self.num_steps == 5, False, {}

    def _obs(self) -> Any:
        obs = self.observation_space.sample()
        if self.observation_space is MASKED:
            obs["action_mask"] = np.roll(np.array([1, 0, 1], np.int8), self.num_steps)
        return obs


@pytest.mark.parametrize("name", CASES)
def test_compiled_steps_are_the_eager_ones(name: str) -> None:
    algorithm_class, policy_class, observation_space, action_space, options = CASES[name]
    made = []
    for is_compiled in (False, True):
        rl.seed(5)
        envs = rl.make_vec(lambda: Sampled(observation_space, action_space), 2, backend="sync", seed=1)
        algorithm = algorithm_class(policy_class.for_envs(envs, hidden_sizes=(8,), **options))
        algorithm.attach(rl.UpdatePlan(runtime=rl.RuntimeParams(compile=is_compiled)))
        algorithm.seed(3)
        is_on_policy = isinstance(algorithm, rl.OnPolicyAlgorithm)
        spaces = (observation_space, action_space)
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
