"""Small envs and algorithms that tests share: everything in them can be worked out by hand."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl
from rltrainer.algorithms import OnPolicyBatch
from rltrainer.ranks.ranks import ALONE, Meeting, Ranks

T = TypeVar("T")

OBS_SPACE = gym.spaces.Box(-10.0, 1000.0, (2,), np.float32)


class CountingEnv(gym.Env[Any, Any]):
    """Observes (seed mod 100, step); rewards 1 each step; ends after `length` steps.

    Args:
        length: steps of an episode.
        truncates: end by truncation, not by termination.
        reward: reward of each step.
        action_space: any space; actions change nothing.
    """

    def __init__(self, length: int = 5, truncates: bool = False, reward: float = 1.0, action_space: Any = None) -> None:
        self.observation_space = OBS_SPACE
        self.action_space = action_space or gym.spaces.Discrete(2)
        self.length, self.truncates, self.reward = length, truncates, reward
        self.num_resets = self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_resets += 1
        self.step_count, self.number = 0, float((seed or 0) % 100)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_count += 1
        self.num_steps += 1
        ended = self.step_count >= self.length
        return self._obs(), self.reward, ended and not self.truncates, ended and self.truncates, {}

    def _obs(self) -> Any:
        return np.array([self.number, self.step_count], np.float32)


def counting_envs(
    num_envs: int = 2, seed: int | None = 1, in_workers: bool = False, **options: Any
) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Return a vector of `CountingEnv`s, in this process or in one each."""
    place: Any = {"backend": "workers", "num_workers": num_envs} if in_workers else {"backend": "sync"}
    return rl.make_vec(partial(CountingEnv, **options), num_envs, seed=seed, **place)


def tiny_actor_critic(envs: gym.vector.VectorEnv[Any, Any, Any], **options: Any) -> rl.ActorCritic:
    """Return the smallest actor-critic for these envs."""
    return rl.ActorCritic.for_envs(envs, hidden_sizes=(8,), **options)


class RNDOfPPO(rl.RND):
    """RND around PPO, made as other algorithms are, for tables of them."""

    policy_class = rl.ActorCritic

    def __init__(self, policy: Any, params: rl.RNDParams | None = None) -> None:
        super().__init__(rl.PPO(policy), params)


PAPERS_RND = rl.RNDParams(separate_value=True, weight=0.5, share=0.5, net=rl.NetParams(hidden_sizes=(16,)))
"""RND as in the paper; a smaller share would leave small minibatches without a step."""


POLICY_OPTIONS: dict[type[rl.Algorithm], dict[str, Any]] = {
    rl.DDPG: {"num_critics": 1}, rl.REDQ: {"num_critics": 3}, rl.TQC: {"num_outputs": 5},
    rl.CrossQ: {"net": rl.NetParams(norm="batch_renorm")},
    rl.FlashSAC: {
        "net": rl.NetParams(norm="unit_residual"), "num_atoms": 21, "smooth_log_std": True, "noise_repeat": 4,
    },
    rl.XQC: {"net": rl.NetParams(norm="unit_batch"), "num_atoms": 21},
    rl.SimbaV2: {"net": rl.NetParams(norm="unit_lerp"), "num_atoms": 21, "smooth_log_std": True},
    rl.C51: {"v_min": -2.0, "v_max": 2.0, "num_atoms": 21}, rl.QRDQN: {"num_quantiles": 5},
    rl.PQN: rl.PQN.policy_options, rl.RecurrentPQN: rl.PQN.policy_options,
}  # fmt: skip
"""Options without which a policy is none of the algorithm's, or a dull one."""


def policy_options(algorithm: Any, params: Any = None) -> dict[str, Any]:
    """Return those options, and the ones that these params name."""
    shared = {} if params is None else {name: getattr(params, name) for name in algorithm.shared_options}
    return POLICY_OPTIONS.get(algorithm, {}) | shared


def built(algorithm: Any, policy: Any, params: Any = None) -> Any:
    """Return an algorithm of this class; a student gets a teacher that has learned nothing."""
    if not issubclass(algorithm, rl.Distillation):
        return algorithm(policy, params)
    teacher = rl.ActorCritic(policy.observation_space, policy.action_space, hidden_sizes=(4,), normalize_obs=True)
    return algorithm(policy, teacher, params)


def flipped(num_actions: int) -> rl.Symmetry:
    """Return a symmetry of vectors with another sign, and choices in reverse order."""
    return rl.Symmetry(obs=torch.neg, action=lambda action: num_actions - 1 - action)


def replay_of(envs: Any, capacity: int = 100, **options: Any) -> rl.ReplayBuffer:
    """Return a replay buffer for these envs."""
    spaces = (envs.single_observation_space, envs.single_action_space)
    return rl.ReplayBuffer(capacity, *spaces, num_envs=envs.num_envs, **options)


def rollouts_of(envs: Any, num_steps: int = 4, **options: Any) -> rl.RolloutBuffer:
    """Return a rollout buffer for these envs."""
    spaces = (envs.single_observation_space, envs.single_action_space)
    return rl.RolloutBuffer(num_steps, envs.num_envs, *spaces, **options)


class ScriptedOnPolicy(rl.OnPolicyAlgorithm):
    """Trains nothing; reports the losses 1, 2, 3, ... and remembers what it was given."""

    def __init__(self, policy: rl.Policy) -> None:
        super().__init__(policy, rl.AlgorithmParams())
        self.num_steps = torch.zeros((), dtype=torch.int64)
        self.rollouts: list[rl.Rollout] = []

    def process(self, rollout: rl.Rollout) -> OnPolicyBatch:
        self.rollouts.append(rollout)
        reward = rollout.reward
        return OnPolicyBatch(rollout.obs, rollout.action, reward, reward, reward, reward, rollout.valid.float())

    def gradient_step(self, batch: OnPolicyBatch) -> rl.UpdateResult:
        self.num_steps += 1
        return rl.UpdateResult({"loss": self.num_steps.float()})


class ScriptedOffPolicy(rl.OffPolicyAlgorithm):
    """Trains nothing; counts gradient steps and remembers the batches."""

    def __init__(self, policy: rl.Policy, params: rl.OffPolicyParams | None = None) -> None:
        super().__init__(policy, params or rl.OffPolicyParams())
        self.num_steps = torch.zeros((), dtype=torch.int64)
        self.batches: list[rl.Transitions] = []
        self.num_prepared = 0

    def prepare(self, buffer: rl.ReplayBuffer) -> None:
        self.num_prepared += 1

    def gradient_step(self, batch: rl.Transitions, noise: Any = None) -> rl.UpdateResult:
        self.num_steps += 1
        self.batches.append(batch)
        return rl.UpdateResult({"loss": self.num_steps.float()})


def run_in_threads(functions: Sequence[Callable[[Ranks], T]], outer: Ranks = ALONE) -> list[T]:
    """Call each function with its rank, in a thread each, and return their results; see `Meeting.running`."""
    meeting, results = Meeting(len(functions), outer), dict[int, T]()

    def call(lane: int) -> None:
        results[lane] = functions[lane](meeting.ranks[lane])

    with meeting.running([partial(call, lane) for lane in range(1, meeting.num)]):
        call(0)
    return [results[lane] for lane in range(meeting.num)]
