"""Record PPO on CartPole: an episode every 8,192 env steps as it learns, and what it has learned as a GIF."""

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
    folder = Path("runs/record_video/videos")
    envs = rl.make_vec("CartPole-v1", num_envs=8)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams(lr=1e-3))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        max_epochs=1 if args.short else 8,
        epoch_num_steps=2048 if args.short else 8192,
        collection_step_num_env_steps=1024,
        update_step_num_repetitions=4,
        hooks=[rl.VideoRecorder(folder, env="CartPole-v1")],
        seed=args.seed,
    )
    algorithm.run_training(params)
    stats = rl.record(algorithm, "CartPole-v1", folder / "trained.gif", max_episode_steps=60, seed=args.seed)
    print(f"the video of {stats.lengths[0]} steps is {folder / 'trained.gif'}")
    print(f"of 20 other episodes: {rl.evaluate_policy(algorithm, 'CartPole-v1', 20, seed=1001)}")
    for path in sorted(folder.glob("*.mp4")):
        print(path)


if __name__ == "__main__":
    main()
