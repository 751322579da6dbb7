"""rltrainer's PPO on CartPole-v1, timed: the twin of peers/sb3_ppo.py. Prints one JSON line."""

import argparse
import importlib.metadata
import json
import time

import gymnasium as gym
import torch

import rltrainer as rl

NUM_ENVS = 8
ROLLOUT_STEPS = 2048


def time_training(envs: gym.vector.VectorEnv, args: argparse.Namespace) -> tuple[int, float]:
    """Time epochs of one rollout each, after as many as warm up."""
    algorithm = rl.PPO(
        rl.ActorCritic.for_envs(envs, hidden_sizes=(64, 64), activation=torch.nn.Tanh),
        rl.PPOParams(
            lr=3e-4, gamma=0.99, gae_lambda=0.95, clip=0.2, entropy_coef=0.0, value_coef=0.5, max_grad_norm=0.5
        ),
    )
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        max_epochs=(args.warmup + args.steps) // ROLLOUT_STEPS,
        epoch_num_steps=ROLLOUT_STEPS,
        collection_step_num_env_steps=ROLLOUT_STEPS,
        batch_size=args.batch_size,
        update_step_num_repetitions=args.repeat,
        seed=args.seed,
        show_progress=False,
        verbose=False,
    )
    trainer = rl.OnPolicyTrainer(algorithm, params)
    trainer.reset()
    return time_calls(lambda: trainer.execute_epoch().collect_stats.num_collected_steps, args)


def time_collection(envs: gym.vector.VectorEnv, args: argparse.Namespace) -> tuple[int, float]:
    """Time rollouts that nobody learns from."""
    policy = rl.ActorCritic.for_envs(envs, hidden_sizes=(64, 64), activation=torch.nn.Tanh)
    spaces = (envs.single_observation_space, envs.single_action_space)
    collector = rl.Collector(policy, envs, rl.RolloutBuffer(ROLLOUT_STEPS // NUM_ENVS, NUM_ENVS, *spaces))
    return time_calls(lambda: collector.collect(num_steps=ROLLOUT_STEPS).num_collected_steps, args)


def time_calls(rollout, args: argparse.Namespace) -> tuple[int, float]:
    """Return how many transitions the timed rollouts gave, and the seconds they took.

    Transitions, not cells: a backend that spends cells on resets gets no credit for them.
    """
    for _ in range(args.warmup // ROLLOUT_STEPS):
        rollout()
    start = time.perf_counter()
    steps = sum(rollout() for _ in range(args.steps // ROLLOUT_STEPS))
    return steps, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=4, help="0: collection alone")
    parser.add_argument("--warmup", type=int, default=8192, help="env steps")
    parser.add_argument("--steps", type=int, default=40960, help="env steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="auto", help="of make_vec")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(args.seed)
    envs = rl.make_vec("CartPole-v1", num_envs=NUM_ENVS, backend=args.backend, seed=args.seed)
    measure = time_training if args.repeat else time_collection
    steps, seconds = measure(envs, args)
    versions = {name: importlib.metadata.version(name) for name in ("rltrainer", "torch", "gymnasium", "numpy")}
    print(json.dumps({"steps": steps, "seconds": seconds, "envs": type(envs).__name__, "versions": versions}))


if __name__ == "__main__":
    main()
