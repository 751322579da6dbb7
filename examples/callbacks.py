"""Callbacks: score by the worst episode, save the best model, stop when it is good enough."""

import argparse
from pathlib import Path

import torch

import rltrainer as rl


def worst_return(stats: rl.CollectStats) -> float:
    """Score a test step by its worst episode, not by the mean."""
    return float(stats.returns.min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/callbacks"))
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(1)
    envs = rl.make_vec("CartPole-v1", num_envs=8)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams(lr=1e-3))

    def save_best(algorithm: rl.PPO) -> None:
        algorithm.save(args.out / "best.safetensors")

    def announce(epoch: int, env_step: int) -> None:
        print(f"test step of epoch {epoch}, after {env_step:,} env steps")

    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        test_collector=rl.Collector(algorithm.policy, rl.make_vec("CartPole-v1", num_envs=10)),
        max_epochs=1 if args.short else 20,
        epoch_num_steps=4096,
        collection_step_num_env_steps=1024,
        batch_size=256,
        update_step_num_repetitions=10,
        test_step_num_episodes=10,
        compute_score_fn=worst_return,
        save_best_fn=save_best,
        stop_fn=lambda score: score >= 400,
        test_fn=announce,
        logger=rl.MultiLogger(rl.CSVLogger(args.out / "log.csv"), rl.JSONLinesLogger(args.out / "log.jsonl")),
        show_progress=False,
        seed=1,
    )
    result = rl.OnPolicyTrainer(algorithm, params).run()
    print(f"worst of 10 episodes {result.best_score:.0f}, mean {result.best_return:.0f} ({result.stop_reason})")


if __name__ == "__main__":
    main()
