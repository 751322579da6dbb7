"""What each algorithm learns, against published scores: median of several seeds, one process, one thread.

python benchmarks/learning.py                          every task, five seeds; prints the table
python benchmarks/learning.py --task dqn_cartpole --seeds 1
python benchmarks/learning.py --write                  also writes benchmarks/learning.md
python benchmarks/learning.py --compile                gradient steps compiled: rows of their own
"""

import argparse
import functools
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rltrainer as rl

sys.path.insert(0, str(Path(__file__).parent))  # tests import this file too

from bit_flip import BitFlip
from catch import Catch
from identity import Identity
from no_velocities import NoVelocities

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
    reference: float | None = None


@dataclass(frozen=True)
class Task:
    """A run per seed, and what its score must reach within the budget; None where it is only reported."""

    run: Callable[[int], Outcome]
    goal: float | None
    budget: str
    note: str = ""
    first_seed: int = 1


def on_policy(
    env: Any, algorithm: Any, num_envs: int, stop: float, steps: int, epoch: int, test_episodes: int = 20,
    policy: dict[str, Any] | None = None, policy_class: Any = rl.ActorCritic, **options: Any,
) -> Callable[[int], Outcome]:  # fmt: skip
    """Train an on-policy algorithm until a test step reaches `stop`, for at most `steps` env steps."""

    def run(seed: int) -> Outcome:
        rl.seed(seed)
        envs, test_envs = rl.make_vec(env, num_envs), rl.make_vec(env, test_episodes)
        agent = algorithm(policy_class.for_envs(envs, **(policy or {})))
        params = rl.OnPolicyTrainerParams(
            training_collector=rl.Collector(agent.policy, envs), test_collector=rl.Collector(agent.policy, test_envs),
            max_epochs=steps // epoch, epoch_num_steps=epoch, test_step_num_episodes=test_episodes, initial_test=False,
            stop_fn=lambda score: score >= stop, seed=seed, **options, **QUIET,
        )  # fmt: skip
        result = rl.OnPolicyTrainer(agent, params).run()
        return Outcome(float(result.best_score or 0.0), result.env_step)

    return run


def off_policy(
    env: Any, make: Callable[[Any], Any], stop: float, steps: int, epoch: int, test_episodes: int = 10,
    make_buffer: Any = rl.ReplayBuffer, **options: Any,
) -> Callable[[int], Outcome]:  # fmt: skip
    """Train an off-policy algorithm in one env until a test step reaches `stop`, for at most `steps` env steps."""

    def run(seed: int) -> Outcome:
        rl.seed(seed)
        envs, test_envs = rl.make_vec(env, 1, backend="sync"), rl.make_vec(env, test_episodes)
        agent = make(envs)
        buffer = make_buffer(steps, envs.single_observation_space, envs.single_action_space)
        params = rl.OffPolicyTrainerParams(
            training_collector=rl.Collector(agent.policy, envs, buffer),
            test_collector=rl.Collector(agent.policy, test_envs),
            max_epochs=steps // epoch, epoch_num_steps=epoch, test_step_num_episodes=test_episodes, initial_test=False,
            stop_fn=lambda score: score >= stop, seed=seed, **options, **QUIET,
        )  # fmt: skip
        result = rl.OffPolicyTrainer(agent, params).run()
        return Outcome(float(result.best_score or 0.0), result.env_step)

    return run


def ppo_cartpole(envs_policy: Any) -> Any:
    return rl.PPO(envs_policy, rl.PPOParams(lr=rl.LinearSchedule(1e-3)))


def ppo_pendulum(policy: Any) -> Any:
    return rl.PPO(policy, rl.PPOParams(lr=1e-3, gamma=0.9))


def ppo_half_cheetah(policy: Any) -> Any:
    return rl.PPO(policy, rl.PPOParams(lr=rl.LinearSchedule(3e-4)))


def a2c_cartpole(policy: Any) -> Any:
    return rl.A2C(policy, rl.A2CParams(lr=rl.LinearSchedule(2e-3), gae_lambda=0.95))


def no_velocities(algorithm: Any, policy_class: Any, goal: float | None = 450, note: str = "", **policy: Any) -> Task:
    """Return CartPole without velocities with the settings of RL Zoo's CartPoleNoVel-v1, half as many repetitions."""
    schedules = {"lr": rl.LinearSchedule(1e-3), "clip": rl.LinearSchedule(0.2)}
    params = rl.PPOParams(gamma=0.98, gae_lambda=0.8, **schedules)
    policy |= {"hidden_sizes": (64,), "activation": nn.ReLU, "normalize_obs": True, "normalize_reward": True}
    run = on_policy(
        NoVelocities, lambda policy: algorithm(policy, params), 8, 450, 98_304, 4096, policy=policy,
        policy_class=policy_class, collection_step_num_env_steps=256, batch_size=None, update_step_num_repetitions=10,
    )  # fmt: skip
    return Task(run, goal, "100k env steps", note)


def trpo_cartpole(policy: Any) -> Any:
    return rl.TRPO(policy, rl.TRPOParams(gamma=0.98, damping=1e-3))


def reinforce_cartpole(policy: Any) -> Any:
    return rl.REINFORCE(policy, rl.REINFORCEParams(lr=rl.LinearSchedule(5e-3)))


def dqn(hidden_sizes: tuple[int, ...] | None = None, **params: Any) -> Callable[[Any], Any]:
    return lambda envs: rl.DQN(rl.QNetwork.for_envs(envs, hidden_sizes=hidden_sizes), rl.DQNParams(**params))


def prioritized(*args: Any) -> rl.PrioritizedReplayBuffer:
    return rl.PrioritizedReplayBuffer(*args, beta=rl.LinearSchedule(0.4, 1.0))


def c51(envs: Any) -> Any:
    policy = rl.CategoricalQNetwork.for_envs(envs, v_min=0.0, v_max=100.0)
    return rl.C51(policy, rl.C51Params(lr=5e-4, target_update_interval=250, n_step=3))


def qr_dqn(envs: Any) -> Any:
    policy = rl.QuantileQNetwork.for_envs(envs, num_quantiles=10)
    return rl.QRDQN(policy, rl.QRDQNParams(lr=1e-3, target_update_interval=250, n_step=3))


def hindsight(capacity: int, *spaces: Any) -> rl.HindsightReplayBuffer:
    return rl.HindsightReplayBuffer.for_env(BitFlip(), capacity)


def success_of_bit_flip(stats: rl.CollectStats) -> float:
    """Return the share of episodes that ended at their goal; without it, all eight steps cost 1."""
    return float((stats.returns > -8).mean())


def bit_flip(make_buffer: Any) -> Callable[[int], Outcome]:
    """Train DQN to reach states of eight bits."""
    make = dqn(lr=1e-3, gamma=0.98, target_update_interval=250, epsilon=0.2)
    return off_policy(
        BitFlip, make, 0.95, 30_000, 3000, test_episodes=100, make_buffer=make_buffer, collection_step_num_env_steps=8,
        batch_size=128, update_step_num_gradient_steps_per_sample=0.125, warmup_num_env_steps=1000,
        compute_score_fn=success_of_bit_flip,
    )  # fmt: skip


def ppo_masked(policy: Any) -> Any:
    return rl.PPO(policy, rl.PPOParams(lr=1e-2, gamma=0.1, clip=0.4, gae_lambda=0.0))


def ppo_image(policy: Any) -> Any:
    return rl.PPO(policy, rl.PPOParams(lr=rl.LinearSchedule(1e-3), entropy_coef=0.01))


def sac(envs: Any) -> Any:
    return rl.SAC(rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(128, 128)), rl.SACParams(lr=1e-3))


def ddpg(envs: Any) -> Any:
    policy = rl.DeterministicActorCritic.for_envs(envs, hidden_sizes=(128, 128), num_critics=1)
    return rl.DDPG(policy, rl.DDPGParams(lr=1e-3, gamma=0.98))


def tqc(envs: Any) -> Any:
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(128, 128), num_outputs=25)
    return rl.TQC(policy, rl.TQCParams(lr=1e-3, critic_lr=1e-3))


def redq(envs: Any) -> Any:
    """Five critics and as many gradient steps per sample, the actor's once."""
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(64, 64), num_critics=5)
    return rl.REDQ(policy, rl.REDQParams(lr=1e-3, critic_lr=1e-3, actor_update_interval=5))


def discrete_sac(envs: Any) -> Any:
    policy = rl.DiscreteActorCritic.for_envs(envs, hidden_sizes=(128, 128))
    return rl.DiscreteSAC(policy, rl.DiscreteSACParams(lr=1e-3))


def sac_sde(envs: Any) -> Any:
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(128, 128), use_sde=True, sde_sample_interval=8)
    return rl.SAC(policy, rl.SACParams(lr=1e-3))


def td3(envs: Any) -> Any:
    return rl.TD3(rl.DeterministicActorCritic.for_envs(envs, hidden_sizes=(128, 128)), rl.TD3Params(lr=1e-3))


def behaviour_data(env: str, make: Callable[[Any], Any], steps: int, seed: int) -> tuple[Any, float]:
    """Train an agent from nothing; return all its data, from random to trained, with the mean return in it."""
    rl.seed(seed)
    envs = rl.make_vec(env, 4)
    agent = make(envs)
    buffer = rl.ReplayBuffer(steps, envs.single_observation_space, envs.single_action_space, num_envs=4)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(agent.policy, envs, buffer),
        max_epochs=1, epoch_num_steps=steps, collection_step_num_env_steps=4, batch_size=128,
        update_step_num_gradient_steps_per_sample=1.0, warmup_num_env_steps=1000, seed=seed, **QUIET,
    )  # fmt: skip
    stats = rl.OffPolicyTrainer(agent, params).run().epochs[0].collect_stats
    assert stats is not None
    return buffer, float(stats.returns.mean())


def offline_pendulum(make: Callable[[Any, Any], Any]) -> Callable[[int], Outcome]:
    """Train offline on all that SAC collected while it learned; the reference is that data's mean return."""

    def run(seed: int) -> Outcome:
        buffer, reference = behaviour_data("Pendulum-v1", sac, 4800, seed)
        agent = make(buffer.observation_space, buffer.action_space)
        return Outcome(train_offline(agent, buffer, "Pendulum-v1", 5000, seed), 5000, reference)

    return run


def discrete_cql_cartpole(seed: int) -> Outcome:
    """Train offline on all that DQN collected while it learned; the reference is that data's mean return."""
    buffer, reference = behaviour_data("CartPole-v1", dqn(lr=5e-4, target_update_interval=250), 20_000, seed)
    policy = rl.QNetwork.for_spaces(buffer.observation_space, buffer.action_space)
    agent = rl.DiscreteCQL(policy, rl.DiscreteCQLParams(lr=5e-4, target_update_interval=250))
    return Outcome(train_offline(agent, buffer, "CartPole-v1", 10_000, seed), 10_000, reference)


def bc_cartpole(seed: int) -> Outcome:
    """Clone an expert: PPO trained to 475, acting greedily; the reference is its mean return."""
    rl.seed(seed)
    envs = rl.make_vec("CartPole-v1", 8)
    expert = ppo_cartpole(rl.ActorCritic.for_envs(envs))
    test_envs = rl.make_vec("CartPole-v1", 20)
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(expert.policy, envs), test_collector=rl.Collector(expert.policy, test_envs),
        max_epochs=25, epoch_num_steps=4096, collection_step_num_env_steps=1024, batch_size=256, seed=seed,
        update_step_num_repetitions=10, test_step_num_episodes=20, stop_fn=lambda score: score >= 475, **QUIET,
    )  # fmt: skip
    rl.OnPolicyTrainer(expert, params).run()
    buffer = rl.ReplayBuffer(10_000, envs.single_observation_space, envs.single_action_space, num_envs=8)
    stats = rl.Collector(expert.policy, envs, buffer).collect(num_episodes=16, explore=False)
    agent = rl.BC(rl.Actor.for_envs(envs))
    return Outcome(train_offline(agent, buffer, "CartPole-v1", 2000, seed), 2000, float(stats.returns.mean()))


def train_offline(agent: Any, buffer: Any, env: str, num_steps: int, seed: int) -> float:
    """Return the score of the last test step: nothing is picked by testing in between."""
    params = rl.OfflineTrainerParams(
        buffer=buffer, test_collector=rl.Collector(agent.policy, rl.make_vec(env, 20)), test_step_num_episodes=20,
        max_epochs=1, epoch_num_steps=num_steps, batch_size=256, initial_test=False, seed=seed, **QUIET,
    )  # fmt: skip
    return float(rl.OfflineTrainer(agent, params).run().best_score or 0.0)


def image_tasks() -> dict[str, Task]:
    """Return DQN and PPO on images, channels last (hwc) and first (chw)."""
    tasks = {}
    for layout in ("hwc", "chw"):
        env = functools.partial(Catch, layout)
        tasks[f"dqn_image_{layout}"] = Task(
            off_policy(env, dqn(lr=5e-4, target_update_interval=250), 0.9, 20_000, 1000, test_episodes=100,
                       collection_step_num_env_steps=4, batch_size=32, warmup_num_env_steps=1000,
                       update_step_num_gradient_steps_per_sample=0.5), 0.9, "20k env steps")  # fmt: skip
        tasks[f"ppo_image_{layout}"] = Task(
            on_policy(env, ppo_image, 8, 0.9, 40_960, 2048, test_episodes=100,
                      policy={"share_encoder": True}, collection_step_num_env_steps=1024, batch_size=256,
                      update_step_num_repetitions=4), 0.9, "41k env steps")  # fmt: skip
    return tasks


TASKS: dict[str, Task] = {
    "ppo_cartpole": Task(
        on_policy("CartPole-v1", ppo_cartpole, 8, 475, 100_352, 4096, collection_step_num_env_steps=1024,
                  batch_size=256, update_step_num_repetitions=10), 475, "100k env steps"),
    "a2c_cartpole": Task(
        on_policy("CartPole-v1", a2c_cartpole, 8, 475, 200_000, 4000, collection_step_num_env_steps=64,
                  batch_size=None), 475, "200k env steps"),
    "trpo_cartpole": Task(
        on_policy("CartPole-v1", trpo_cartpole, 8, 475, 100_352, 4096, collection_step_num_env_steps=1024,
                  batch_size=256, update_step_num_repetitions=10), 475, "100k env steps"),
    "recurrent_ppo_no_velocities": no_velocities(rl.RecurrentPPO, rl.RecurrentActorCritic, cell="lstm"),
    "recurrent_ppo_gru_no_velocities": no_velocities(rl.RecurrentPPO, rl.RecurrentActorCritic, cell="gru"),
    "ppo_no_velocities": no_velocities(rl.PPO, rl.ActorCritic, None, "below 100 without memory"),
    "reinforce_cartpole": Task(
        on_policy("CartPole-v1", reinforce_cartpole, 8, 475, 200_000, 4000, collection_step_num_env_steps=None,
                  collection_step_num_episodes=8, batch_size=None), 475, "200k env steps"),
    "dqn_cartpole": Task(
        off_policy("CartPole-v1", dqn(lr=5e-4, target_update_interval=250, n_step=3), 475, 50_000, 1000,
                   test_episodes=20, collection_step_num_env_steps=4, batch_size=128,
                   update_step_num_gradient_steps_per_sample=0.5, warmup_num_env_steps=1000), 475, "50k env steps"),
    "prioritized_dqn_cartpole": Task(
        off_policy("CartPole-v1", dqn(lr=5e-4, target_update_interval=250, n_step=3), 475, 50_000, 1000,
                   test_episodes=20, make_buffer=prioritized, collection_step_num_env_steps=4, batch_size=128,
                   update_step_num_gradient_steps_per_sample=0.5, warmup_num_env_steps=1000), 475, "50k env steps"),
    "prioritized_dqn_lunar_lander": Task(
        off_policy("LunarLander-v3", dqn((256, 256), lr=5e-4, target_update_interval=250, double=True), 200,
                   300_000, 10_000, test_episodes=20, make_buffer=prioritized, collection_step_num_env_steps=4,
                   batch_size=128, update_step_num_gradient_steps_per_sample=0.25, warmup_num_env_steps=5000),
        200, "300k env steps", "needs the extra box2d"),
    "hindsight_dqn_bit_flip": Task(bit_flip(hindsight), 0.9, "30k env steps"),
    "dqn_bit_flip": Task(bit_flip(rl.ReplayBuffer), None, "30k env steps", "below 0.3 without hindsight"),
    "c51_cartpole": Task(
        off_policy("CartPole-v1", c51, 475, 100_000, 1000, test_episodes=20, collection_step_num_env_steps=4,
                   batch_size=128, update_step_num_gradient_steps_per_sample=0.5, warmup_num_env_steps=1000),
        475, "100k env steps"),
    "qr_dqn_cartpole": Task(
        off_policy("CartPole-v1", qr_dqn, 475, 100_000, 1000, test_episodes=20, collection_step_num_env_steps=4,
                   batch_size=128, update_step_num_gradient_steps_per_sample=0.5, warmup_num_env_steps=1000),
        475, "100k env steps"),
    "discrete_sac_cartpole": Task(
        off_policy("CartPole-v1", discrete_sac, 400, 100_000, 1000, test_episodes=20, collection_step_num_env_steps=4,
                   batch_size=128, update_step_num_gradient_steps_per_sample=0.5, warmup_num_env_steps=1000),
        400, "100k env steps"),
    "dqn_acrobot": Task(
        off_policy("Acrobot-v1", dqn(lr=5e-4, target_update_interval=250, n_step=3), -100, 100_000, 5000,
                   test_episodes=20, collection_step_num_env_steps=4, batch_size=128,
                   update_step_num_gradient_steps_per_sample=0.25, warmup_num_env_steps=1000), -100, "100k env steps"),
    "sac_pendulum": Task(
        off_policy("Pendulum-v1", sac, -200, 20_000, 1000, test_episodes=20, collection_step_num_env_steps=1,
                   batch_size=128, warmup_num_env_steps=1000), -200, "20k env steps"),
    "sac_sde_pendulum": Task(
        off_policy("Pendulum-v1", sac_sde, -200, 20_000, 1000, test_episodes=20, collection_step_num_env_steps=1,
                   batch_size=128, warmup_num_env_steps=1000), -200, "20k env steps"),
    "td3_pendulum": Task(
        off_policy("Pendulum-v1", td3, -200, 20_000, 1000, test_episodes=20, collection_step_num_env_steps=1,
                   batch_size=128, warmup_num_env_steps=1000), -200, "20k env steps"),
    "ddpg_pendulum": Task(
        off_policy("Pendulum-v1", ddpg, -170, 20_000, 1000, test_episodes=20, collection_step_num_env_steps=1,
                   batch_size=128, warmup_num_env_steps=1000), -170, "20k env steps"),
    "tqc_pendulum": Task(
        off_policy("Pendulum-v1", tqc, -165, 20_000, 1000, test_episodes=20, collection_step_num_env_steps=1,
                   batch_size=128, warmup_num_env_steps=1000), -165, "20k env steps"),
    "redq_pendulum": Task(
        off_policy("Pendulum-v1", redq, -200, 6000, 500, test_episodes=20, collection_step_num_env_steps=1,
                   batch_size=128, warmup_num_env_steps=500, update_step_num_gradient_steps_per_sample=5.0),
        -200, "6k env steps"),
    "ppo_pendulum": Task(
        on_policy("Pendulum-v1", ppo_pendulum, 4, -250, 200_704, 8192, collection_step_num_env_steps=4096,
                  batch_size=64, update_step_num_repetitions=10), -250, "200k env steps"),
    "ppo_sde_pendulum": Task(
        on_policy("Pendulum-v1", ppo_pendulum, 4, -250, 200_704, 8192, collection_step_num_env_steps=4096,
                  policy={"use_sde": True, "sde_sample_interval": 4}, batch_size=64, update_step_num_repetitions=10),
        -250, "200k env steps"),
    "bc_cartpole": Task(bc_cartpole, None, "2k gradient steps", "at least 0.9 of the expert"),
    "td3_bc_pendulum": Task(
        offline_pendulum(lambda obs, action: rl.TD3BC(
            rl.DeterministicActorCritic.for_spaces(obs, action, hidden_sizes=(128, 128), normalize_obs=True),
            rl.TD3BCParams(lr=1e-3, alpha=10.0))),
        None, "5k gradient steps", "above the data's mean", first_seed=6),
    "iql_pendulum": Task(
        offline_pendulum(lambda obs, action: rl.IQL(
            rl.GaussianActorCritic.for_spaces(obs, action, hidden_sizes=(128, 128)),
            rl.IQLParams(lr=1e-3, expectile=0.8))),
        None, "5k gradient steps", "above the data's mean"),
    "discrete_cql_cartpole": Task(discrete_cql_cartpole, None, "10k gradient steps", "at least 0.9 of the behaviour"),
    "cql_pendulum": Task(
        offline_pendulum(lambda obs, action: rl.CQL(
            rl.SquashedActorCritic.for_spaces(obs, action, hidden_sizes=(64, 64)),
            rl.CQLParams(lr=1e-3, critic_lr=1e-3, conservative_coef=1.0, num_sampled_actions=4))),
        None, "5k gradient steps", "a quarter above the data's mean"),
    "ppo_half_cheetah": Task(
        on_policy("HalfCheetah-v4", ppo_half_cheetah, 8, 1e9, 307_200, 20_480, 10,
                  policy={"normalize_obs": True, "normalize_reward": True}, collection_step_num_env_steps=2048,
                  batch_size=64, update_step_num_repetitions=10), None, "300k env steps", "reported"),
    "ppo_masked_identity": Task(
        on_policy(Identity, ppo_masked, 1, 90, 2048, 2048, policy={"hidden_sizes": (512,)},
                  collection_step_num_env_steps=512, batch_size=64, update_step_num_repetitions=2),
        90, "2,048 env steps"),
    **image_tasks(),
}  # fmt: skip


def passes(task: Task, outcomes: list[Outcome]) -> bool:
    """Whether the median run reached the task's goal."""
    if task.goal is not None:
        return statistics.median(outcome.score for outcome in outcomes) >= task.goal
    if task.note.startswith("at least"):
        return statistics.median(o.score / (o.reference or 1.0) for o in outcomes) >= 0.9
    if task.note.startswith("a quarter"):
        return statistics.median(o.score - (o.reference or 0.0) - abs(o.reference or 0.0) / 4 for o in outcomes) > 0
    if task.note.startswith("below"):
        return statistics.median(outcome.score for outcome in outcomes) < float(task.note.split()[1])
    if task.note.startswith("above"):
        return statistics.median(o.score - (o.reference or 0.0) for o in outcomes) > 0
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="compile the gradient steps")
    parser.add_argument("--write", action="store_true", help="merge the figures into benchmarks/learning.json and .md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    QUIET["runtime"] = rl.RuntimeParams(compile=args.compile, num_threads=None)
    for name in args.task or TASKS:
        task, outcomes, seconds = TASKS[name], [], []
        for seed in range(task.first_seed, task.first_seed + args.seeds):
            started = time.perf_counter()
            outcomes.append(task.run(seed))
            seconds.append(time.perf_counter() - started)
            print(f"{name} seed {seed}: {outcomes[-1]} in {seconds[-1]:.0f} s", flush=True)
        rows = read_rows()  # read anew: another process may have added its tasks
        key = name + COMPILED * args.compile
        rows[key] = {
            "scores": [round(o.score, 1) for o in outcomes],
            "steps": [o.num_steps for o in outcomes],
            "references": [None if o.reference is None else round(o.reference, 1) for o in outcomes],
            "seconds": round(statistics.median(seconds)),
            "passes": passes(task, outcomes),
        }
        if args.write:
            STORE.write_text(json.dumps(rows, indent=1) + "\n")
            (HERE / "learning.md").write_text(table(rows))
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
        "The images are those of `benchmarks/catch.py`, channels last (hwc) or first (chw); the best return is 1.",
        "CartPole without velocities is `benchmarks/no_velocities.py`; the best return is 500.",
        "The masked task is `benchmarks/identity.py`: 70 actions, 55 of them not allowed; the best return is 100.",
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
        goal = f"{task.goal:g}" if task.goal is not None else task.note
        scores = ", ".join(f"{score:g}" for score in row["scores"])
        if row["references"][0] is not None:
            scores += " (references " + ", ".join(f"{reference:g}" for reference in row["references"]) + ")"
        median, steps = statistics.median(row["scores"]), statistics.median(row["steps"])
        reached = "yes" if row["passes"] else "no"
        cells = [name, goal, task.budget, f"{median:g}", scores, f"{steps:,.0f}", str(row["seconds"]), reached]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
