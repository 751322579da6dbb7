"""Many workers on Pendulum-v1: SAC whose workers act while it learns, or PPO whose envs never wait.

python examples/many_workers.py            # AsyncCollector: each worker has a copy of the policy
python examples/many_workers.py --batched  # BatchedCollector: the policy decides here for envs that are ready
"""

import argparse
import functools

import torch

import rltrainer as rl


def with_copies(num_workers: int, num_steps: int) -> rl.InfoStats:
    make_envs = functools.partial(rl.make_vec, "Pendulum-v1", num_envs=1)
    envs = make_envs()
    algorithm = rl.SAC(rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(64, 64)), rl.SACParams(lr=1e-3))
    spaces = (envs.single_observation_space, envs.single_action_space)
    collector = rl.AsyncCollector(
        algorithm.policy,
        make_envs,
        num_workers=num_workers,
        buffer=rl.ReplayBuffer(50_000, *spaces, num_envs=num_workers),
        sync_every=rl.Every(4, "training_step"),
    )
    params = rl.OffPolicyTrainerParams(
        training_collector=collector,
        test_collector=rl.Collector(algorithm.policy, rl.make_vec("Pendulum-v1", num_envs=10)),
        max_epochs=2,
        epoch_num_steps=num_steps,
        collection_step_num_env_steps=num_workers,
        warmup_num_env_steps=min(1000, num_steps),
        test_step_num_episodes=10,
        seed=1,
    )
    result = algorithm.run_training(params)
    told = collector.settings()
    print(f"{told['utd_ratio']:.2f} gradient steps per env step, weights {told['version_lag']:.1f} versions old")
    collector.close()
    return result


def batched(num_workers: int, num_steps: int) -> rl.InfoStats:
    envs = rl.make_vec("Pendulum-v1", num_envs=num_workers, backend="workers", num_workers=num_workers)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, normalize_obs=True, normalize_reward=True))
    inference = rl.InferenceParams(min_batch_size=1, max_batch_size=num_workers, max_wait_time=0.001)
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.BatchedCollector(algorithm.policy, envs, inference=inference),
        test_collector=rl.Collector(algorithm.policy, rl.make_vec("Pendulum-v1", num_envs=10)),
        max_epochs=2,
        epoch_num_steps=num_steps,
        collection_step_num_env_steps=min(2048, num_steps),
        batch_size=64,
        update_step_num_repetitions=10,
        test_step_num_episodes=10,
        seed=1,
    )
    result = algorithm.run_training(params)
    envs.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batched", action="store_true", help="decide here for envs that are ready")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(1)
    num_steps = 400 if args.short else 10_000
    result = batched(args.workers, num_steps) if args.batched else with_copies(args.workers, num_steps)
    print(f"best score {result.best_score:.1f} after {result.env_step:,} env steps")


if __name__ == "__main__":  # worker processes import this file
    main()
