"""The trainings that are disturbed: small networks and cheap envs, so that a run has many moments to be disturbed."""

import math
import mmap
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

import rltrainer as rl
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.envs.workers.worker_vector_env import WorkerVectorEnv

STEP_TIMEOUT = 1
"""Seconds after which an env hangs."""
MAX_RESTARTS = 3
QUIET: dict[str, Any] = {"seed": 5, "show_progress": False, "verbose": False}
BOX, DISCRETE = gym.spaces.Box(-1.0, 1.0, (1,), np.float32), gym.spaces.Discrete(2)


_troubles: list["EnvTrouble"] = []


class EnvTrouble:
    """A fault of one env, in its step of some number after `arm` was called; in workers that were forked too.

    Pickled, it is itself, for whoever has it by a fork.

    Args:
        kind: a key of `STRIKES`.
        env: the number of the env.
        at: the how-manieth step.
        times: how many steps in a row.
    """

    def __init__(self, kind: str, env: int, at: int, times: int = 1) -> None:
        self.kind, self.env, self.at, self.times = kind, env, at, times
        self._shared = mmap.mmap(-1, 3)  # armed, steps since then, strikes
        _troubles.append(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _trouble, (_troubles.index(self),)

    def arm(self) -> None:
        self._shared[0] = 1

    @property
    def num_strikes(self) -> int:
        return self._shared[2]

    def after_step(self, env: int, result: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the result of an env's step, if there is one."""
        shared = self._shared
        if env == self.env and shared[0] and shared[2] < self.times:
            shared[1] = min(shared[1] + 1, 255)
            if shared[1] >= self.at:
                shared[2] += 1
                return STRIKES[self.kind](*result)
        return result


def _trouble(number: int) -> EnvTrouble:
    return _troubles[number]


def _raise(*result: Any) -> Any:
    raise ValueError("the wheel is off")


def _kill(*result: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(*result: Any) -> Any:
    time.sleep(600)


STRIKES: dict[str, Callable[..., Any]] = {
    "exception": _raise,
    "kill": _kill,
    "hang": _hang,
    "NaN reward": lambda obs, reward, *rest: (obs, math.nan, *rest),
    "NaN observation": lambda obs, *rest: (obs * np.float32(math.nan), *rest),
}


def next_obs(obs: Any, action: Any) -> Any:
    """Return what follows (place, steps / 100, drift) in a `RestlessEnv`, for batches too."""
    place, steps, drift = obs[..., 0], obs[..., 1], obs[..., 2]
    moved = np.float32(0.9) * place + np.float32(0.1) * action + np.float32(0.05) * drift
    return np.stack([moved, steps + np.float32(0.01), drift], -1).astype(np.float32)


class RestlessEnv(gym.Env[Any, Any]):
    """A point that actions push and that drifts: where it goes can be computed from what is stored.

    Its reward is random. An episode ends by chance, or is truncated after 30 steps.
    """

    def __init__(self, action_space: Any, number: int, trouble: EnvTrouble | None = None) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space, self.number, self.trouble = action_space, number, trouble

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.obs = np.array([self.np_random.normal(), 0.0, self.np_random.uniform(-1, 1)], np.float32)
        self.num_steps = 0
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, ...]:  # type: ignore[override]  # a trouble may change it
        self.num_steps += 1
        self.obs = next_obs(self.obs, np.float32(np.sum(action)))
        reward = -abs(float(self.obs[0])) + 0.1 * self.np_random.normal()
        ends = bool(self.np_random.random() < 0.05)
        result = self.obs, float(reward), ends, not ends and self.num_steps >= 30, {}
        return result if self.trouble is None else self.trouble.after_step(self.number, result)


@dataclass(frozen=True)
class Setting:
    """What one life of a run is told.

    Args:
        folder: of the run: logs and journals.
        saved: where its checkpoints lie.
        max_epochs: of the whole run.
        trouble: of the training envs.
        test_trouble: of the test envs.
        hooks: only those that read.
        checkpoint: fields of `CheckpointParams`; None saves nothing.
        callbacks: fields of the trainer's params.
    """

    folder: str
    saved: str
    max_epochs: int
    trouble: EnvTrouble | None = None
    test_trouble: EnvTrouble | None = None
    hooks: tuple[rl.TrainerHook, ...] = ()
    checkpoint: dict[str, Any] | None = None
    callbacks: dict[str, Any] = field(default_factory=dict)

    def common(self, algorithm: Any, test_envs: Any) -> dict[str, Any]:
        """Return the fields of all trainers."""
        logger = rl.JSONLinesLogger(f"{self.folder}/log.jsonl", training_interval=1, update_interval=1, strict=True)
        checkpoint = None if self.checkpoint is None else rl.CheckpointParams(self.saved, **self.checkpoint)
        test = rl.Collector(algorithm.policy, test_envs)
        return QUIET | self.callbacks | {
            "max_epochs": self.max_epochs, "test_collector": test, "test_step_num_episodes": 2, "logger": logger,
            "hooks": self.hooks, "checkpoint": checkpoint, "runtime": rl.RuntimeParams(compile=False),
        }  # fmt: skip


def make_envs(
    in_workers: bool,
    num_envs: int,
    action_space: Any,
    trouble: EnvTrouble | None = None,
    on_env_error: Any = "raise",
    num_workers: int = 2,
) -> Any:
    """Return envs that know their numbers. Workers are forked: a life then starts in a tenth of a second."""
    factories = [partial(RestlessEnv, action_space, number, trouble) for number in range(num_envs)]
    if not in_workers:
        return SyncVectorEnv(factories)
    options = {"on_env_error": on_env_error, "max_restarts": MAX_RESTARTS, "step_timeout": STEP_TIMEOUT}
    return WorkerVectorEnv(factories, num_workers=num_workers, start_method="fork", **options)


def off_policy(setting: Setting, make_collector: Callable[[Any, EnvTrouble | None], Any]) -> Any:
    """Return SAC with four envs and a buffer that wraps around.

    Args:
        setting: of the life.
        make_collector: from a policy and the trouble of the envs to a collector.
    """
    rl.seed(1)
    envs = make_envs(False, 4, BOX)
    algorithm = rl.SAC(
        rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,), normalize_obs=True), rl.SACParams(n_step=2)
    )
    collector = make_collector(algorithm.policy, setting.trouble)
    collector.attach_buffer(rl.ReplayBuffer(400, envs.single_observation_space, envs.single_action_space, num_envs=4))
    params = rl.OffPolicyTrainerParams(
        training_collector=collector, epoch_num_steps=80,
        collection_step_num_env_steps=20, update_step_num_gradient_steps_per_sample=0.1, batch_size=8,
        warmup_num_env_steps=40, **setting.common(algorithm, make_envs(False, 2, BOX, setting.test_trouble)),
    )  # fmt: skip
    return rl.OffPolicyTrainer(algorithm, params)


def in_step(policy: Any, trouble: EnvTrouble | None, on_env_error: str = "raise") -> Any:
    """Return a collector with two workers."""
    return rl.Collector(policy, make_envs(True, 4, BOX, trouble, on_env_error))


def batched(policy: Any, trouble: EnvTrouble | None) -> Any:
    """Return a collector that lets its policy decide for the envs that are ready."""
    return rl.BatchedCollector(policy, make_envs(True, 4, BOX, trouble, num_workers=4))


def asynchronous(policy: Any, trouble: EnvTrouble | None) -> Any:
    """Return a collector whose two workers act while the learner updates."""
    make = partial(make_envs, False, 2, BOX, trouble)
    return rl.AsyncCollector(policy, make, 2, step_timeout=STEP_TIMEOUT, start_method="fork")


def on_policy(setting: Setting) -> Any:
    """Return PPO with envs in the trainer's process."""
    rl.seed(1)
    envs = make_envs(False, 4, DISCRETE, setting.trouble)
    policy = rl.ActorCritic.for_envs(envs, hidden_sizes=(8,), normalize_obs=True, normalize_reward=True)
    algorithm = rl.PPO(policy, rl.PPOParams(lr=rl.LinearSchedule(1e-3)))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs), epoch_num_steps=80, collection_step_num_env_steps=20,
        batch_size=10, update_step_num_repetitions=2,
        **setting.common(algorithm, make_envs(False, 2, DISCRETE, setting.test_trouble)),
    )  # fmt: skip
    return rl.OnPolicyTrainer(algorithm, params)


def native(setting: Setting) -> Any:
    """Return PPO on gymnasium's own vector env of CartPole, which `make_vec` takes for 8 envs."""
    rl.seed(1)
    envs = rl.make_vec("CartPole-v1", 8)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=(8,)))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs), epoch_num_steps=256, collection_step_num_env_steps=64,
        batch_size=32, **setting.common(algorithm, rl.make_vec("CartPole-v1", 8)),
    )  # fmt: skip
    return rl.OnPolicyTrainer(algorithm, params)


def offline(setting: Setting) -> Any:
    """Return discrete CQL on prioritized data, whose priorities change with every step."""
    rl.seed(1)
    envs = make_envs(False, 2, DISCRETE)
    algorithm = rl.DiscreteCQL(rl.QNetwork.for_envs(envs, hidden_sizes=(8,)))
    spaces = envs.single_observation_space, envs.single_action_space
    buffer = rl.PrioritizedReplayBuffer(200, *spaces, num_envs=2, beta=rl.LinearSchedule(0.4, 1.0))
    collector = rl.Collector(algorithm.policy, envs, buffer)
    collector.seed(2)
    collector.collect(num_steps=200, random=True)
    params = rl.OfflineTrainerParams(
        buffer=buffer, epoch_num_steps=4, batch_size=16,
        **setting.common(algorithm, make_envs(False, 2, DISCRETE, setting.test_trouble)),
    )  # fmt: skip
    return rl.OfflineTrainer(algorithm, params)


LEGS: dict[str, Callable[[Setting], Any]] = {
    "off-policy, workers": partial(off_policy, make_collector=in_step),
    "on-policy": on_policy,
    "on-policy, native": native,
    "offline": offline,
    "off-policy, restarts": partial(off_policy, make_collector=partial(in_step, on_env_error="restart")),
    "off-policy, async": partial(off_policy, make_collector=asynchronous),
    "off-policy, batched": partial(off_policy, make_collector=batched),
}
INEXACT = ("off-policy, restarts", "off-policy, async", "off-policy, batched")
"""Those that do not promise the bits of an undisturbed run: envs begin anew, or what is collected depends on time."""
