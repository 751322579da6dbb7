"""The work with Tianshou. Runs in its own virtual environment; prints one JSON line."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import task
import torch
from data import buffer_steps, fill, offline_data
from tianshou.algorithm import DQN, PPO, SAC, TD3, TD3BC
from tianshou.algorithm.imitation.imitation_base import ImitationPolicy, OfflineImitationLearning
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.trainer import (
    OfflineTrainer,
    OfflineTrainerParams,
    OffPolicyTrainer,
    OffPolicyTrainerParams,
    OnPolicyTrainer,
    OnPolicyTrainerParams,
)
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

PACKAGES = ("tianshou", "torch", "gymnasium", "numpy")
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (task.OBS_SIZE,), np.float32)
ACTION_SPACE = gym.spaces.Box(-1, 1, (task.ACTION_SIZE,), np.float32)


def make_algorithm(work: task.Work, obs_space: gym.Space, action_space: gym.Space) -> Any:
    """Return the algorithm; its networks are as the work says, actor and critic apart."""
    adam = AdamOptimizerFactory(lr=work.lr)
    obs_shape = obs_space.shape
    action_shape = action_space.n if isinstance(action_space, gym.spaces.Discrete) else action_space.shape

    def net(**options: Any) -> Net:
        return Net(state_shape=obs_shape, hidden_sizes=work.hidden_sizes, **options)

    def critic() -> ContinuousCritic:
        return ContinuousCritic(preprocess_net=net(action_shape=action_shape, concat=True))

    def deterministic(noise: GaussianNoise | None) -> ContinuousDeterministicPolicy:
        actor = ContinuousActorDeterministic(preprocess_net=net(), action_shape=action_shape)
        return ContinuousDeterministicPolicy(actor=actor, exploration_noise=noise, action_space=action_space)

    twins = {"gamma": task.GAMMA, "tau": task.TAU, "policy_optim": adam, "critic_optim": adam}
    match work.kind:
        case "ppo":
            actor = DiscreteActor(
                preprocess_net=net(activation=torch.nn.Tanh), action_shape=action_shape, softmax_output=False
            )
            value = DiscreteCritic(preprocess_net=net(activation=torch.nn.Tanh))
            return PPO(
                policy=DiscreteActorPolicy(actor=actor, action_space=action_space), critic=value, optim=adam,
                eps_clip=task.CLIP, vf_coef=task.VALUE_COEF, ent_coef=0.0, max_grad_norm=task.MAX_GRAD_NORM,
                gae_lambda=task.GAE_LAMBDA, gamma=task.GAMMA, advantage_normalization=True,
            )  # fmt: skip
        case "dqn":
            model = net(action_shape=action_shape)
            policy = DiscreteQLearningPolicy(model=model, action_space=action_space, eps_training=task.DQN_EPSILON)
            return DQN(
                policy=policy, optim=adam, gamma=task.GAMMA, target_update_freq=task.DQN_TARGET_INTERVAL,
                is_double=False, huber_loss_delta=1.0,
            )  # fmt: skip
        case "sac":
            actor = ContinuousActorProbabilistic(
                preprocess_net=net(), action_shape=action_shape, unbounded=True, conditioned_sigma=True
            )
            alpha = AutoAlpha(-float(task.ACTION_SIZE), 0.0, adam)
            policy = SACPolicy(actor=actor, action_space=action_space)
            return SAC(policy=policy, critic=critic(), critic2=critic(), alpha=alpha, **twins)
        case "td3":
            return TD3(policy=deterministic(GaussianNoise(sigma=0.1)), critic=critic(), critic2=critic(), **twins)
        case "td3bc":
            return TD3BC(policy=deterministic(None), critic=critic(), critic2=critic(), **twins)
        case "bc":
            actor = ContinuousActorDeterministic(preprocess_net=net(), action_shape=action_shape)
            policy = ImitationPolicy(
                actor=actor, action_space=action_space, action_scaling=True, action_bound_method="clip"
            )
            return OfflineImitationLearning(policy=policy, optim=adam)
    raise SystemExit(f"Tianshou has no {work.kind}")


def make_trainer(work: task.Work, envs: DummyVectorEnv) -> Any:
    """Return the online trainer, an epoch of which is one chunk; the random steps are done."""
    algorithm = make_algorithm(work, envs.observation_space[0], envs.action_space[0])
    options = {"epoch_num_steps": work.chunk, "batch_size": work.batch_size, "show_progress": False, "verbose": False}
    if work.kind == "ppo":
        collector = Collector(algorithm, envs, VectorReplayBuffer(work.chunk, work.num_envs))
        params = OnPolicyTrainerParams(
            training_collector=collector, collection_step_num_env_steps=work.chunk,
            update_step_num_repetitions=work.repeat, **options,
        )  # fmt: skip
        trainer: Any = OnPolicyTrainer(algorithm, params)
        trainer.reset()
        return trainer
    buffer = VectorReplayBuffer(task.REPLAY_SIZE, work.num_envs)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=work.random_steps, random=True)
    params = OffPolicyTrainerParams(
        training_collector=collector, collection_step_num_env_steps=work.num_envs,
        update_step_num_gradient_steps_per_sample=float(work.gradient_steps), **options,
    )  # fmt: skip
    trainer = OffPolicyTrainer(algorithm, params)
    trainer.reset(reset_collectors=False)
    return trainer


def make_offline_trainer(work: task.Work, seed: int) -> Any:
    """Return the offline trainer, an epoch of which is one chunk of updates."""
    data = offline_data(seed)
    buffer = ReplayBuffer.from_data(
        obs=data["obs"], act=data["action"], rew=data["reward"], obs_next=data["next_obs"],
        terminated=data["terminated"], truncated=data["truncated"], done=data["terminated"] | data["truncated"],
    )  # fmt: skip
    params = OfflineTrainerParams(
        buffer=buffer, batch_size=work.batch_size, epoch_num_steps=work.chunk, show_progress=False, verbose=False
    )
    trainer = OfflineTrainer(make_algorithm(work, OBS_SPACE, ACTION_SPACE), params)
    trainer.reset()
    return trainer


def training(trainer: Any, chunk: int) -> Callable[[int], int]:
    """Return what trains for so many steps."""

    def advance(steps: int) -> int:
        for _ in range(steps // chunk):
            trainer.execute_epoch()
        return steps

    return advance


def buffer_work(work: task.Work, seed: int) -> Callable[[int], int]:
    """Return what adds to, or samples from, a filled replay buffer."""
    buffer = VectorReplayBuffer(task.BUFFER_SIZE, task.BUFFER_ENVS)
    steps = buffer_steps(seed)

    def add() -> None:
        step = next(steps)
        terminated, truncated = step["terminated"], step["truncated"]
        buffer.add(
            Batch(
                obs=step["obs"], act=step["action"], rew=step["reward"], obs_next=step["next_obs"],
                terminated=terminated, truncated=truncated, done=terminated | truncated,
            )
        )  # fmt: skip

    fill(work, add)
    return task.repeated(add if work.kind == "add" else lambda: buffer.sample(work.batch_size))


def main() -> None:
    args = task.parser(__doc__).parse_args()
    work = task.WORKS[args.work]
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    envs = None
    if work.kind in ("add", "sample"):
        advance = buffer_work(work, args.seed)
    elif work.kind in ("td3bc", "iql", "bc"):
        advance = training(make_offline_trainer(work, args.seed), work.chunk)
    else:
        envs = DummyVectorEnv([lambda: gym.make(work.env_id) for _ in range(work.num_envs)])
        envs.seed(args.seed)
        advance = training(make_trainer(work, envs), work.chunk)
    task.measure(dataclasses.replace(work, random_steps=0), advance, args, envs, PACKAGES)


if __name__ == "__main__":
    main()
