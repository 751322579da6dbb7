"""DQN on CartPole-v1: a replay buffer, random warm-up, and a test every 2,000 env steps."""

import argparse

import torch

import rltrainer as rl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(args.seed)
    envs = rl.make_vec("CartPole-v1", num_envs=1)
    policy = rl.QNetwork.for_envs(envs, dueling=True)
    algorithm = rl.DoubleDQN(policy, rl.DQNParams(n_step=3))
    buffer = rl.ReplayBuffer(50_000, envs.single_observation_space, envs.single_action_space)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs, buffer),
        test_collector=rl.Collector(policy, rl.make_vec("CartPole-v1", num_envs=10)),
        max_epochs=2 if args.short else 25,
        epoch_num_steps=300 if args.short else 2000,
        **(rl.DQN.recommended(envs) | {"batch_size": 128, "warmup_num_env_steps": 200 if args.short else 1000}),
        test_step_num_episodes=10,
        stop_fn=lambda score: score >= 475,
        seed=args.seed,
    )
    result = rl.OffPolicyTrainer(algorithm, params).run()
    print(f"best score {result.best_score:.1f} after {result.env_step:,} env steps ({result.stop_reason})")


if __name__ == "__main__":
    main()
