"""What each algorithm learns, against published scores: median of several seeds, one process, one thread.

python benchmarks/learning.py                          every task, its seeds; prints the table
python benchmarks/learning.py --task dqn_cartpole --seeds 1
python benchmarks/learning.py --write                  also writes docs/measurements/learning.md
python benchmarks/learning.py --compile                gradient steps compiled: rows of their own
"""

import argparse
import functools
import itertools
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rltrainer as rl

sys.path.insert(0, str(Path(__file__).parent))  # tests import this file too

from bit_flip import BitFlip
from catch import Catch
from chain import Chain
from identity import Identity
from no_velocities import InGroups, NoVelocities, TensorNoVelocities
from one_update_old import OneUpdateOld

HERE = Path(__file__).parent
COMPILED = ", compiled"
STORE = HERE / "learning.json"
QUIET: dict[str, Any] = {
    "show_progress": False,
    "verbose": False,
    "runtime": rl.RuntimeParams(compile=False, num_threads=None),
}


@dataclass(frozen=True)
class Outcome:
    """One run: the score it is judged by, the env steps (offline: gradient steps) it took, its reference."""

    score: float
    num_steps: int
    reference: float = math.nan


@dataclass(frozen=True)
class Goal:
    """What the table says of a goal, and by how much an outcome passes it; the median run must not fall short."""

    text: str
    margin: Callable[[Outcome], float]


def at_least(score: float) -> Goal:
    return Goal(f"{score:g}", lambda run: run.score - score)


def below(score: float, text: str) -> Goal:
    return Goal(f"below {score:g} {text}", lambda run: score - run.score)


def above_data(text: str, share: float = 0.0) -> Goal:
    """The mean return in the data, and a share of its magnitude more."""
    return Goal(f"{text} the data's mean", lambda run: run.score - run.reference - share * abs(run.reference))


def most_of(text: str) -> Goal:
    return Goal(f"at least 0.9 of the {text}", lambda run: run.score - 0.9 * run.reference)


BELOW_HALF = Goal("below half of the teacher's score", lambda run: 0.5 * run.reference - run.score)
OVER_RANDOM = Goal("a fifth above random", lambda run: run.score - 0.8 * run.reference)
"""Of returns that are negative."""
REPORTED = Goal("reported", lambda run: 0.0)


@dataclass(frozen=True)
class Task:
    """A run per seed, and what the median of them must reach within the budget."""

    run: Callable[..., Outcome]
    goal: Goal
    budget: str
    first_seed: int = 1
    num_seeds: int = 5


Make = Callable[[Any, Any], Any]
"""Builds an algorithm for a space of observations and one of actions."""


def agent(algorithm: Any, policy: dict[str, Any] | None = None, policy_class: Any = None, **params: Any) -> Make:
    """Return what builds an algorithm with options of its policy and with hyperparameters."""

    def make(observation_space: Any, action_space: Any) -> Any:
        of_class = policy_class or algorithm.policy_class
        built = of_class.for_spaces(observation_space, action_space, **(policy or {}))
        return algorithm(built, algorithm.params_class(**params))

    return make


def of_layers(norm: Any, *hidden_sizes: int) -> dict[str, Any]:
    """Return options of a policy with such layers in actor and critics."""
    net = rl.NetParams(norm=norm, hidden_sizes=hidden_sizes)
    return {"net": net, "critic_net": net}


def online(
    env: Any, make: Make, stop: float, steps: int, epoch: int, *, goal: Goal | None = None, num_envs: int = 1,
    test_episodes: int = 20, make_buffer: Any = None, collector: Any = rl.Collector, num_seeds: int = 5, **options: Any,
) -> Task:  # fmt: skip
    """Return a task: train until a test step reaches `stop`, at most `steps` env steps; off policy with a buffer."""

    def run(seed: int, backend: Any = "auto") -> Outcome:
        rl.seed(seed)
        envs, test_envs = (rl.make_vec(env, number, backend=backend) for number in (num_envs, test_episodes))
        spaces = envs.single_observation_space, envs.single_action_space
        learner = make(*spaces)
        buffer = make_buffer(steps, *spaces, num_envs=num_envs) if make_buffer else None
        params_class = rl.OffPolicyTrainerParams if make_buffer else rl.OnPolicyTrainerParams
        params = params_class(
            training_collector=collector(learner.policy, envs, buffer),
            test_collector=rl.Collector(learner.policy, test_envs), test_step_num_episodes=test_episodes,
            max_epochs=steps // epoch, epoch_num_steps=epoch, initial_test=False, stop_fn=lambda score: score >= stop,
            seed=seed, **options, **QUIET,
        )  # fmt: skip
        result = learner.run_training(params)
        return Outcome(float(result.best_score or 0.0), result.env_step)

    return Task(run, goal or at_least(stop), f"{steps:,} env steps", num_seeds=num_seeds)


on_policy = functools.partial(online, num_envs=8)
off_policy = functools.partial(online, make_buffer=rl.ReplayBuffer)


def of_tensors(task: Task) -> Task:
    """Return an online task with envs of tensors."""
    return replace(task, run=functools.partial(task.run, backend="tensor"))


def offline(
    env: str, make: Make, behave: Make, data_steps: int, steps: int, goal: Goal, first_seed: int = 1, num_seeds: int = 5
) -> Task:  # fmt: skip
    """Return a task: train on all that another agent collected while it learned, with reference to its mean return."""

    def run(seed: int) -> Outcome:
        buffer, reference, _ = behaviour_data(env, behave, data_steps, seed)
        learner = make(buffer.observation_space, buffer.action_space)
        return Outcome(train_offline(learner, buffer, env, steps, seed), steps, reference)

    return Task(run, goal, f"{steps:,} gradient steps", first_seed, num_seeds)


def behaviour_data(env: str, make: Make, steps: int, seed: int) -> tuple[rl.ReplayBuffer, float, rl.Policy]:
    """Train an agent from nothing; return all its data, from random to trained, the mean return in it, its policy."""
    rl.seed(seed)
    envs = rl.make_vec(env, 4)
    spaces = envs.single_observation_space, envs.single_action_space
    learner, buffer = make(*spaces), rl.ReplayBuffer(steps, *spaces, num_envs=4)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(learner.policy, envs, buffer), max_epochs=1, epoch_num_steps=steps,
        collection_step_num_env_steps=4, batch_size=128, warmup_num_env_steps=1000, seed=seed, **QUIET,
    )  # fmt: skip
    stats = learner.run_training(params).epochs[0].collect_stats
    return buffer, float(stats.returns.mean()), learner.policy


def train_offline(learner: Any, buffer: rl.ReplayBuffer, env: str, steps: int, seed: int) -> float:
    """Return the score of the last test step: nothing is picked by testing in between."""
    params = rl.OfflineTrainerParams(
        buffer=buffer, test_collector=rl.Collector(learner.policy, rl.make_vec(env, 20)), test_step_num_episodes=20,
        max_epochs=1, epoch_num_steps=steps, batch_size=256, initial_test=False, seed=seed, **QUIET,
    )  # fmt: skip
    return float(learner.run_training(params).best_score or 0.0)


def rlpd_pendulum(seed: int) -> Outcome:
    """Train REDQ with layer norm in the env and on all that SAC collected while it learned, half of each batch."""
    data, reference, _ = behaviour_data("Pendulum-v1", SAC, 4800, seed)

    def mixed(*args: Any, **options: Any) -> rl.MixedBuffer:
        return rl.MixedBuffer(rl.ReplayBuffer(*args, **options), data, offline_share=0.5)

    found = off_policy("Pendulum-v1", LAYER_REDQ, -200, 2000, 250, make_buffer=mixed, **REDQ_STEPS).run(seed)
    return replace(found, reference=reference)


def then_online(algorithm: Any, goal: Goal) -> Task:
    """Return a task: 5,000 steps on SAC's data, then ten episodes in the env too; their lowest test is the score."""
    make = agent(
        algorithm, {"hidden_sizes": (64, 64)}, lr=1e-3, critic_lr=1e-3, conservative_coef=1.0, num_sampled_actions=4
    )

    def run(seed: int) -> Outcome:
        data, _, _ = behaviour_data("Pendulum-v1", SAC, 4800, seed)
        rl.seed(seed)
        spaces, scores = (data.observation_space, data.action_space), list[float]()
        learner = make(*spaces)
        offline_score = train_offline(learner, data, "Pendulum-v1", 5000, seed)

        def score(stats: rl.CollectStats) -> float:
            scores.append(float(stats.returns.mean()))
            return scores[-1]

        def mixed(*args: Any, **options: Any) -> rl.MixedBuffer:
            return rl.MixedBuffer(rl.ReplayBuffer(*args, **options), data, offline_share=0.5)

        off_policy(
            "Pendulum-v1", lambda *_: learner, 1e9, 2000, 200, make_buffer=mixed, compute_score_fn=score,
            collection_step_num_env_steps=200, batch_size=256,
        ).run(seed)  # fmt: skip
        return Outcome(min(scores), 2000, offline_score)

    return Task(run, goal, "2,000 env steps", num_seeds=3)


def cartpole_expert(env: Any, seed: int) -> tuple[Any, Any, Any, float]:
    """Return PPO trained to 475, its envs of training and of tests, and its score."""
    rl.seed(seed)
    envs, test_envs = rl.make_vec(env, 8), rl.make_vec(env, 20)
    expert = PPO_CARTPOLE(envs.single_observation_space, envs.single_action_space)
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(expert.policy, envs), test_collector=rl.Collector(expert.policy, test_envs),
        max_epochs=25, epoch_num_steps=4096, test_step_num_episodes=20, stop_fn=lambda score: score >= 475, seed=seed,
        **PPO_STEPS, **QUIET,
    )  # fmt: skip
    result = expert.run_training(params)
    return expert, envs, test_envs, float(result.best_score or 0.0)


def distilled(seed: int, student: Any) -> Outcome:
    """Teach a student without velocities what PPO does, which sees all; the reference is PPO's score."""
    teacher, envs, test_envs, reference = cartpole_expert(InGroups, seed)
    policy = student.for_envs(envs, rl.NetParams(keys=("places",)))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs), test_collector=rl.Collector(policy, test_envs),
        max_epochs=10, epoch_num_steps=5120, test_step_num_episodes=20, initial_test=False,
        stop_fn=lambda score: score >= 0.9 * reference, seed=seed, **rl.Distillation.recommended(envs), **QUIET,
    )  # fmt: skip
    result = rl.Distillation(policy, teacher.policy).run_training(params)
    return Outcome(float(result.best_score or 0.0), result.env_step, reference)


def fqe_pendulum(seed: int) -> Outcome:
    """Estimate four policies from SAC's data: the largest error in percent, and the share of pairs in the right order.

    One seed repeats its steps, so the first three are policies on the way to the last one.
    """
    values = []
    envs = rl.make_vec("Pendulum-v1", 100)
    data, _, last = behaviour_data("Pendulum-v1", SAC, 4800, seed)
    for policy in [*(behaviour_data("Pendulum-v1", SAC, steps, seed)[2] for steps in (1600, 2000, 2400)), last]:
        fqe = rl.FQE(policy, rl.FQEParams(lr=1e-3, gamma=0.97))
        train_offline(fqe, data, "Pendulum-v1", 5000, seed)
        start = obs = envs.reset(seed=seed)[0]
        return_ = 0.0
        for step in range(200):
            obs, reward, *_ = envs.step(policy.act(torch.as_tensor(obs)).numpy(force=True))
            return_ += 0.97**step * float(reward.mean())
        values.append((return_, float(fqe.value(start).mean())))
    pairs = [(a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in itertools.combinations(values, 2)]
    return Outcome(max(100 * abs(found / return_ - 1) for return_, found in values), 5000, sum(pairs) / len(pairs))


def bc_cartpole(seed: int) -> Outcome:
    """Clone an expert: PPO trained to 475, acting greedily; the reference is its mean return."""
    expert, envs, _, _ = cartpole_expert("CartPole-v1", seed)
    spaces = envs.single_observation_space, envs.single_action_space
    buffer = rl.ReplayBuffer(10_000, *spaces, num_envs=8)
    stats = rl.Collector(expert.policy, envs, buffer).collect(num_episodes=16, explore=False)
    clone = rl.BC(rl.Actor.for_spaces(*spaces))
    return Outcome(train_offline(clone, buffer, "CartPole-v1", 2000, seed), 2000, float(stats.returns.mean()))


def simple_spread(seed: int) -> Outcome:
    """Train three agents that share a policy to cover three landmarks; the reference is what random play comes to."""
    from mpe2 import simple_spread_v3  # of the extra `pettingzoo`

    rl.seed(seed)
    make_env = functools.partial(simple_spread_v3.parallel_env, max_cycles=25)
    envs, test_envs = rl.AgentsAsEnvs(make_env, 8), rl.AgentsAsEnvs(make_env, 10)
    policy = rl.ActorCritic.for_envs(envs, normalize_obs=True, normalize_reward=True)
    training, test = (rl.Collector(policy, each, info_keys=("team_return",)) for each in (envs, test_envs))
    test.seed(seed)
    reference = test.collect(num_episodes=300, random=True).info_means["team_return"]
    learner = rl.PPO(policy, rl.PPOParams(lr=rl.LinearSchedule(2e-3), gamma=0.95, entropy_coef=0.01))
    params = rl.OnPolicyTrainerParams(
        training_collector=training, test_collector=test, compute_score_fn=lambda s: s.info_means["team_return"],
        max_epochs=1, epoch_num_steps=120_000, collection_step_num_env_steps=2400, batch_size=600,
        update_step_num_repetitions=10, test_step_num_episodes=300, initial_test=False, seed=seed, **QUIET,
    )  # fmt: skip
    result = learner.run_training(params)
    return Outcome(float(result.best_score or 0.0), result.env_step, reference)


def prioritized(*args: Any, num_envs: int) -> rl.PrioritizedReplayBuffer:
    return rl.PrioritizedReplayBuffer(*args, num_envs=num_envs, beta=rl.LinearSchedule(0.4, 1.0))


def hindsight(capacity: int, *spaces: Any, num_envs: int) -> rl.HindsightReplayBuffer:
    return rl.HindsightReplayBuffer.for_env(BitFlip(), capacity, num_envs=num_envs)


def success_of_bit_flip(stats: rl.CollectStats) -> float:
    """Return the share of episodes that ended at their goal; without it, all eight steps cost 1."""
    return float((stats.returns > -8).mean())


def in_a_worker(env: str, policy: rl.Policy, envs: Any, buffer: Any) -> rl.AsyncCollector:
    """Return a collector whose worker acts in such envs while the learner updates."""
    return rl.AsyncCollector(policy, functools.partial(rl.make_vec, env, envs.num_envs), buffer=buffer)


PPO_STEPS = {"collection_step_num_env_steps": 1024, "batch_size": 256, "update_step_num_repetitions": 10}
DQN_STEPS = {
    "collection_step_num_env_steps": 4, "batch_size": 128, "update_step_num_gradient_steps_per_sample": 0.5,
    "warmup_num_env_steps": 1000,
}  # fmt: skip
SAC_STEPS = {"collection_step_num_env_steps": 1, "batch_size": 128, "warmup_num_env_steps": 1000}
REDQ_STEPS = SAC_STEPS | {"warmup_num_env_steps": 500, "update_step_num_gradient_steps_per_sample": 5.0}
PENDULUM_STEPS = {
    "num_envs": 4, "collection_step_num_env_steps": 4096, "batch_size": 64, "update_step_num_repetitions": 10
}  # fmt: skip
CHAIN_STEPS = {"collection_step_num_env_steps": 256, "batch_size": 64, "update_step_num_repetitions": 10}
BIT_FLIP = DQN_STEPS | {
    "test_episodes": 100, "collection_step_num_env_steps": 8, "update_step_num_gradient_steps_per_sample": 0.125,
    "compute_score_fn": success_of_bit_flip,
}  # fmt: skip
WIDE: dict[str, Any] = {"hidden_sizes": (128, 128)}

PPO_CARTPOLE = agent(rl.PPO, lr=rl.LinearSchedule(1e-3))
PPO_PENDULUM = {"lr": 1e-3, "gamma": 0.9}
DQN = {"lr": 5e-4, "target_update_interval": 250}
DQN_BIT_FLIP = agent(rl.DQN, lr=1e-3, gamma=0.98, target_update_interval=250, epsilon=0.2)
DQN_CARTPOLE = agent(rl.DQN, **DQN, n_step=3)
SAC = agent(rl.SAC, WIDE, lr=1e-3)
# Five critics and as many gradient steps per sample, the actor's once.
FIVE: dict[str, Any] = {"hidden_sizes": (64, 64), "num_critics": 5}
REDQ: dict[str, Any] = {"lr": 1e-3, "critic_lr": 1e-3, "actor_update_interval": 5}
LAYER_REDQ = agent(rl.REDQ, FIVE | {"critic_net": rl.NetParams(norm="layer")}, **REDQ)
BLOCK = rl.NetParams(norm="unit_residual", hidden_sizes=(64,))
FLASHSAC = agent(rl.FlashSAC, rl.FlashSAC.policy_options | {"net": BLOCK, "critic_net": BLOCK})


def no_velocities(algorithm: Any, policy: dict[str, Any], goal: Goal | None = None, env: Any = NoVelocities) -> Task:
    """Return CartPole without velocities with the settings of RL Zoo's CartPoleNoVel-v1, half as many repetitions."""
    policy |= {"hidden_sizes": (64,), "activation": nn.ReLU, "normalize_obs": True, "normalize_reward": True}
    schedules = {"lr": rl.LinearSchedule(1e-3), "clip": rl.LinearSchedule(0.2)}
    return on_policy(
        env, agent(algorithm, policy, gamma=0.98, gae_lambda=0.8, **schedules), 450, 98_304, 4096, goal=goal,
        collection_step_num_env_steps=256, batch_size=None, update_step_num_repetitions=10,
    )  # fmt: skip


def ppo_with_bonus(observation_space: Any, action_space: Any) -> rl.RND:
    """Return RND as in the paper around PPO."""
    ppo = rl.PPO(rl.ActorCritic.for_spaces(observation_space, action_space), rl.PPOParams(gamma=0.999))
    return rl.RND(ppo, rl.RNDParams(separate_value=True, weight=0.5, share=0.25, lr=1e-4))


def images(layout: str) -> dict[str, Task]:
    """Return DQN and PPO on images, channels last (hwc) or first (chw)."""
    env = functools.partial(Catch, layout)
    ppo = agent(rl.PPO, {"share_encoder": True}, lr=rl.LinearSchedule(1e-3), entropy_coef=0.01)
    return {
        f"dqn_image_{layout}": off_policy(
            env, agent(rl.DQN, **DQN), 0.9, 20_000, 1000, test_episodes=100, **DQN_STEPS | {"batch_size": 32}),
        f"ppo_image_{layout}": on_policy(
            env, ppo, 0.9, 40_960, 2048, test_episodes=100, **PPO_STEPS | {"update_step_num_repetitions": 4}),
    }  # fmt: skip


TASKS: dict[str, Task] = {
    "ppo_cartpole": on_policy("CartPole-v1", PPO_CARTPOLE, 475, 100_352, 4096, **PPO_STEPS),
    "a2c_cartpole": on_policy(
        "CartPole-v1", agent(rl.A2C, lr=rl.LinearSchedule(2e-3), gae_lambda=0.95), 475, 200_000, 4000,
        collection_step_num_env_steps=64, batch_size=None),
    "impala_cartpole": on_policy(  # the defaults
        "CartPole-v1", agent(rl.IMPALA), 475, 300_000, 5000, collector=OneUpdateOld, collection_step_num_env_steps=160,
        batch_size=None),
    "trpo_cartpole": on_policy(
        "CartPole-v1", agent(rl.TRPO, gamma=0.98, damping=1e-3), 475, 100_352, 4096, **PPO_STEPS),
    "recurrent_ppo_no_velocities": no_velocities(rl.RecurrentPPO, {"cell": "lstm"}),
    "recurrent_ppo_gru_no_velocities": no_velocities(rl.RecurrentPPO, {"cell": "gru"}),
    "ppo_no_velocities": no_velocities(rl.PPO, {}, goal=below(100, "without memory")),
    "distillation_no_velocities": Task(
        functools.partial(distilled, student=rl.RecurrentActorCritic), most_of("teacher's score"), "51,200 env steps",
        num_seeds=3),
    "distillation_without_memory": Task(
        functools.partial(distilled, student=rl.ActorCritic), BELOW_HALF, "51,200 env steps", num_seeds=3),
    "reinforce_cartpole": on_policy(
        "CartPole-v1", agent(rl.REINFORCE, lr=rl.LinearSchedule(5e-3)), 475, 200_000, 4000,
        collection_step_num_env_steps=None, collection_step_num_episodes=8, batch_size=None),
    "pqn_cartpole": on_policy(  # the recipe
        "CartPole-v1", agent(rl.PQN, {"hidden_sizes": (120, 84)} | rl.PQN.policy_options), 475, 499_712, 31_232,
        num_envs=4, num_seeds=3, collection_step_num_env_steps=512, batch_size=128, update_step_num_repetitions=4),
    "recurrent_pqn_no_velocities": on_policy(
        NoVelocities,
        agent(rl.RecurrentPQN, {"normalize_obs": True} | rl.RecurrentPQN.policy_options, lr=rl.LinearSchedule(1e-3),
              td_lambda=0.9, epsilon=rl.LinearSchedule(1.0, 0.05, until=0.3)),
        450, 200_000, 8192, num_envs=16, num_seeds=3, collection_step_num_env_steps=1024, batch_size=256,
        update_step_num_repetitions=4),
    "rnd_chain": on_policy(Chain, ppo_with_bonus, 1.0, 10_000, 1024, num_seeds=3, **CHAIN_STEPS),
    "ppo_chain": on_policy(
        Chain, agent(rl.PPO), 1.0, 10_000, 1024, goal=below(0.5, "without a bonus"), num_seeds=3, **CHAIN_STEPS),
    "dqn_chain": off_policy(
        Chain, agent(rl.DQN), 1.0, 10_000, 1000, goal=below(0.5, "without a bonus"), num_seeds=3, **DQN_STEPS),
    "dqn_cartpole": off_policy("CartPole-v1", DQN_CARTPOLE, 475, 50_000, 1000, **DQN_STEPS),
    "prioritized_dqn_cartpole": off_policy(
        "CartPole-v1", DQN_CARTPOLE, 475, 50_000, 1000, make_buffer=prioritized, **DQN_STEPS),
    "prioritized_dqn_lunar_lander": off_policy(
        "LunarLander-v3", agent(rl.DQN, {"hidden_sizes": (256, 256)}, **DQN, double=True), 200, 300_000, 10_000,
        make_buffer=prioritized, num_seeds=1, collection_step_num_env_steps=4, batch_size=128,
        update_step_num_gradient_steps_per_sample=0.25, warmup_num_env_steps=5000),
    "hindsight_dqn_bit_flip": off_policy(
        BitFlip, DQN_BIT_FLIP, 0.95, 30_000, 3000, goal=at_least(0.9), make_buffer=hindsight, **BIT_FLIP),
    "dqn_bit_flip": off_policy(
        BitFlip, DQN_BIT_FLIP, 0.95, 30_000, 3000, goal=below(0.3, "without hindsight"), **BIT_FLIP),
    "c51_cartpole": off_policy(
        "CartPole-v1", agent(rl.C51, {"v_min": 0.0, "v_max": 100.0}, **DQN, n_step=3), 475, 100_000, 1000, **DQN_STEPS),
    "qr_dqn_cartpole": off_policy(
        "CartPole-v1", agent(rl.QRDQN, {"num_quantiles": 10}, **DQN | {"lr": 1e-3}, n_step=3), 475, 100_000, 1000,
        **DQN_STEPS),
    "discrete_sac_cartpole": off_policy(
        "CartPole-v1", agent(rl.DiscreteSAC, WIDE, lr=1e-3), 400, 100_000, 1000, **DQN_STEPS),
    "dqn_acrobot": off_policy(
        "Acrobot-v1", DQN_CARTPOLE, -100, 100_000, 5000,
        **DQN_STEPS | {"update_step_num_gradient_steps_per_sample": 0.25}),
    "sac_pendulum": off_policy("Pendulum-v1", SAC, -200, 20_000, 1000, **SAC_STEPS),
    "sac_async_pendulum": off_policy(
        "Pendulum-v1", SAC, -200, 20_000, 1000, collector=functools.partial(in_a_worker, "Pendulum-v1"),
        **SAC_STEPS),
    "sac_sde_pendulum": off_policy(
        "Pendulum-v1", agent(rl.SAC, WIDE | {"use_sde": True, "sde_sample_interval": 8}, lr=1e-3), -200, 20_000, 1000,
        **SAC_STEPS),
    "td3_pendulum": off_policy("Pendulum-v1", agent(rl.TD3, WIDE, lr=1e-3), -200, 20_000, 1000, **SAC_STEPS),
    "ddpg_pendulum": off_policy(
        "Pendulum-v1", agent(rl.DDPG, WIDE | {"num_critics": 1}, lr=1e-3, gamma=0.98), -170, 20_000, 1000, **SAC_STEPS),
    "tqc_pendulum": off_policy(
        "Pendulum-v1", agent(rl.TQC, WIDE | {"num_outputs": 25}, lr=1e-3, critic_lr=1e-3), -165, 20_000, 1000,
        **SAC_STEPS),
    "redq_pendulum": off_policy("Pendulum-v1", agent(rl.REDQ, FIVE, **REDQ), -200, 6000, 500, **REDQ_STEPS),
    "redq_layers_pendulum": off_policy("Pendulum-v1", LAYER_REDQ, -200, 2000, 250, num_seeds=3, **REDQ_STEPS),
    "rlpd_pendulum": Task(rlpd_pendulum, at_least(-200), "2,000 env steps", num_seeds=3),
    "crossq_pendulum": off_policy(
        "Pendulum-v1", agent(rl.CrossQ, {"net": rl.NetParams(norm="batch_renorm")}, actor_update_interval=2),
        -165, 20_000, 1000, **SAC_STEPS),
    "flashsac_pendulum": off_policy("Pendulum-v1", FLASHSAC, -165, 20_000, 1000, num_seeds=3, **SAC_STEPS),
    "xqc_pendulum": off_policy(  # the recipe
        "Pendulum-v1", agent(rl.XQC, rl.XQC.policy_options | of_layers("unit_batch", 128, 128), gamma=0.975), -165,
        20_000, 1000, num_seeds=3, **SAC_STEPS),
    "simbav2_pendulum": off_policy(  # the recipe
        "Pendulum-v1", agent(rl.SimbaV2, rl.SimbaV2.policy_options | of_layers("unit_lerp", 128), gamma=0.975), -165,
        20_000, 1000, num_seeds=3, **SAC_STEPS),
    "ppo_pendulum": on_policy("Pendulum-v1", agent(rl.PPO, **PPO_PENDULUM), -250, 200_704, 8192, **PENDULUM_STEPS),
    "ppo_lagging_pendulum": on_policy(
        "Pendulum-v1", agent(rl.PPO, **PPO_PENDULUM), -250, 200_704, 8192, collector=OneUpdateOld, **PENDULUM_STEPS),
    "ppo_sde_pendulum": on_policy(
        "Pendulum-v1", agent(rl.PPO, {"use_sde": True, "sde_sample_interval": 4}, **PPO_PENDULUM), -250, 200_704, 8192,
        **PENDULUM_STEPS),
    "bc_cartpole": Task(bc_cartpole, most_of("expert"), "2,000 gradient steps"),
    "td3_bc_pendulum": offline(
        "Pendulum-v1", agent(rl.TD3BC, WIDE | {"normalize_obs": True}, lr=1e-3, alpha=10.0), SAC, 4800, 5000,
        above_data("above"), first_seed=6),
    "rebrac_pendulum": offline(
        "Pendulum-v1", agent(rl.ReBRAC, WIDE | {"critic_net": rl.NetParams(norm="layer")}), SAC, 4800, 5000,
        above_data("above"), first_seed=6),
    "fql_pendulum": offline(
        "Pendulum-v1", agent(rl.FQL, WIDE | {"critic_net": rl.NetParams(norm="layer")}, lr=1e-3, alpha=0.01), SAC, 4800,
        5000, above_data("above"), first_seed=6, num_seeds=3),
    "iql_pendulum": offline(
        "Pendulum-v1", agent(rl.IQL, WIDE, lr=1e-3, expectile=0.8), SAC, 4800, 5000, above_data("above")),
    "discrete_cql_cartpole": offline(
        "CartPole-v1", agent(rl.DiscreteCQL, **DQN), agent(rl.DQN, **DQN), 20_000, 10_000, most_of("behaviour")),
    "cql_pendulum": offline(
        "Pendulum-v1",
        agent(rl.CQL, {"hidden_sizes": (64, 64)}, lr=1e-3, critic_lr=1e-3, conservative_coef=1.0,
              num_sampled_actions=4),
        SAC, 4800, 5000, above_data("a quarter above", share=0.25)),
    "fqe_pendulum": Task(
        fqe_pendulum, Goal("errors below 20 %, all in order", lambda run: 20 - run.score if run.reference == 1 else -1),
        "5,000 gradient steps", num_seeds=3),
    "cal_ql_then_online_pendulum": then_online(
        rl.CalQL, Goal("never 200 below offline", lambda run: run.score + 200 - run.reference)),
    "cql_then_online_pendulum": then_online(
        rl.CQL, Goal("200 below offline", lambda run: run.reference - 200 - run.score)),
    "ppo_half_cheetah": on_policy(
        "HalfCheetah-v4", agent(rl.PPO, {"normalize_obs": True, "normalize_reward": True}, lr=rl.LinearSchedule(3e-4)),
        1e9, 307_200, 20_480, goal=REPORTED, test_episodes=10, collection_step_num_env_steps=2048, batch_size=64,
        update_step_num_repetitions=10),
    "ppo_masked_identity": on_policy(
        Identity, agent(rl.PPO, {"hidden_sizes": (512,)}, lr=1e-2, gamma=0.1, clip=0.4, gae_lambda=0.0), 90, 2048, 2048,
        num_envs=1, collection_step_num_env_steps=512, batch_size=64, update_step_num_repetitions=2),
    "ppo_simple_spread": Task(simple_spread, OVER_RANDOM, "120,000 env steps", num_seeds=3),
    **images("hwc"),
    **images("chw"),
}  # fmt: skip
TENSOR_TASKS = {
    f"{name}_tensor": of_tensors(task)
    for name, task in {
        **{name: TASKS[name] for name in (
            "ppo_cartpole", "a2c_cartpole", "impala_cartpole", "trpo_cartpole", "reinforce_cartpole", "ppo_pendulum")},
        "recurrent_ppo_no_velocities": no_velocities(rl.RecurrentPPO, {"cell": "lstm"}, env=TensorNoVelocities),
        "pqn_cartpole": on_policy(
            "CartPole-v1", agent(rl.PQN, rl.PQN.policy_options, lr=rl.LinearSchedule(1e-3), td_lambda=0.9), 475,
            196_608, 16_384, num_envs=32, num_seeds=3, collection_step_num_env_steps=2048, batch_size=128,
            update_step_num_repetitions=4),
        "dqn_cartpole": off_policy(
            "CartPole-v1", agent(rl.DQN, lr=1e-3, target_update_interval=100, n_step=3), 475, 50_000, 1024, num_envs=32,
            collection_step_num_env_steps=32, batch_size=128, update_step_num_gradient_steps_per_sample=0.25,
            warmup_num_env_steps=1024),
        "sac_pendulum": off_policy(
            "Pendulum-v1", SAC, -200, 20_000, 1000, num_envs=16, batch_size=128, warmup_num_env_steps=1000,
            collection_step_num_env_steps=16, update_step_num_gradient_steps_per_sample=0.5),
    }.items()
}  # fmt: skip
"""The tasks with envs of tensors: the same goals and budgets."""
TASKS |= TENSOR_TASKS


def passes(task: Task, outcomes: list[Outcome]) -> bool:
    """Whether the median run reached the task's goal."""
    return statistics.median(map(task.goal.margin, outcomes)) >= 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--seeds", type=int, help="how many; 5, or as many as the task names")
    parser.add_argument("--compile", action="store_true", help="compile the gradient steps")
    parser.add_argument("--write", action="store_true", help="merge the figures into benchmarks/learning.json and .md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    QUIET["runtime"] = rl.RuntimeParams(compile=args.compile, num_threads=None)
    for name in args.task or TASKS:
        task, outcomes, seconds = TASKS[name], [], []
        for seed in range(task.first_seed, task.first_seed + (args.seeds or task.num_seeds)):
            started = time.perf_counter()
            outcomes.append(task.run(seed))
            seconds.append(time.perf_counter() - started)
            print(f"{name} seed {seed}: {outcomes[-1]} in {seconds[-1]:.0f} s", flush=True)
        rows = read_rows()  # read anew: another process may have added its tasks
        key = name + COMPILED * args.compile
        rows[key] = {
            "scores": [round(o.score, 1) for o in outcomes],
            "steps": [o.num_steps for o in outcomes],
            "references": [None if math.isnan(o.reference) else round(o.reference, 1) for o in outcomes],
            "seconds": round(statistics.median(seconds)),
            "passes": passes(task, outcomes),
        }
        if args.write:
            STORE.write_text(json.dumps(rows, indent=1) + "\n")
            (HERE.parent / "docs/measurements/learning.md").write_text(table(rows))
        print(table({key: rows[key]}))


def read_rows() -> dict[str, Any]:
    """Return the figures of earlier calls."""
    return json.loads(STORE.read_text()) if STORE.exists() else {}


def table(rows: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        "# What the algorithms learn",
        "",
        "Made by `python benchmarks/learning.py --write` (`--compile`): one thread. A run stops at the first test step",
        "of 20 greedy episodes (HalfCheetah: 10, images: 100) that reaches the goal; the score is the best one's,",
        "offline that of the last one. Steps are env steps, offline gradient steps; seconds include tests.",
        "The offline Pendulum tasks train on all that SAC collected while it learned; their reference is the mean",
        "return in that data. TD3+BC's alpha (10, the paper has 2.5) was chosen on seeds 1 to 5 and runs on 6 to 10.",
        "RLPD draws half of each batch from that data. `redq_layers_pendulum` is the same agent without data: on",
        "Pendulum the data saves few env steps. ReBRAC, RLPD, that agent, XQC, SimbaV2 and FlashSAC ran with three",
        "seeds on a busy machine; FlashSAC's took 90, 91 and 62 s of the processor.",
        "So did FQL, with alpha and learning rate chosen on seed 1; its seconds are CPU time, without collecting data.",
        "`fqe_pendulum` estimates SAC's policies after 1,600, 2,000, 2,400 and 4,800 steps: the score is the largest",
        "error in percent, the reference the share of pairs in the right order. `then_online` means 5,000 gradient",
        "steps on SAC's data, then ten episodes: the score is the lowest of ten tests, the reference that before them.",
        "Both ran on a busy machine.",
        "The images are those of `benchmarks/catch.py`, channels last (hwc) or first (chw); the best return is 1.",
        "CartPole without velocities is `benchmarks/no_velocities.py`; the best return is 500. Distilled students see",
        "no velocities either; PPO, their teacher, sees all; its score is the reference. They ran on a busy machine.",
        "The data of IMPALA, and of PPO where it lags, is one update old: `benchmarks/one_update_old.py`.",
        "The masked task is `benchmarks/identity.py`: 70 actions, 55 of them not allowed; the best return is 100.",
        "Simple spread is mpe2's: three agents share a policy (`rl.AgentsAsEnvs`). Scores are team returns of 100",
        "episodes after the whole run, env steps those of single agents; the reference is random play.",
        "Runs went two at a time, so the seconds are rough.",
        "PPO on HalfCheetah-v4, published: 1867 +- 48, the model card of CleanRL's `ppo_fix_continuous_action`, seed 2",
        "(huggingface.co/sdpkjc/HalfCheetah-v4-ppo_fix_continuous_action-seed2), after its whole run, not 300k steps.",
        f"torch {torch.__version__.split('+')[0]}, Python {platform.python_version()}, CPU.",
        "",
        "| task | goal | budget | median score | scores by seed | median steps | seconds | reached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in (key for task in TASKS for key in (task, task + COMPILED)):
        if name not in rows:
            continue
        row, task = rows[name], TASKS[name.removesuffix(COMPILED)]
        scores = ", ".join(f"{score:g}" for score in row["scores"])
        if row["references"][0] is not None:
            scores += " (references " + ", ".join(f"{reference:g}" for reference in row["references"]) + ")"
        median, steps = statistics.median(row["scores"]), statistics.median(row["steps"])
        reached = "yes" if row["passes"] else "no"
        cells = [name, task.goal.text, task.budget, f"{median:g}", scores, f"{steps:,.0f}", row["seconds"], reached]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
