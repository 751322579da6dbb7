"""Film PPO on CartPole as it learns: an episode of the test envs every 2,048 env steps, each as an MP4 file."""

import argparse
from pathlib import Path

import torch

import rltrainer as rl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(args.seed)
    envs = rl.make_vec("CartPole-v1", num_envs=8)
    test_envs = rl.make_vec("CartPole-v1", num_envs=4, render_mode="rgb_array")
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams(lr=1e-3))
    folder = Path("runs/record_video/videos")
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        test_collector=rl.Collector(algorithm.policy, test_envs),
        max_epochs=1 if args.short else 8,
        epoch_num_steps=2048 if args.short else 8192,
        collection_step_num_env_steps=1024,
        update_step_num_repetitions=4,
        test_step_num_episodes=4,
        stop_fn=lambda score: score >= 475,
        hooks=[rl.VideoRecorder(folder, every=rl.Every(2048, "env_step"))],
        seed=args.seed,
    )
    result = rl.OnPolicyTrainer(algorithm, params).run()
    print(f"best score {result.best_score:.0f} after {result.env_step:,} env steps")
    for path in sorted(folder.glob("*.mp4")):
        print(path)


if __name__ == "__main__":
    main()
