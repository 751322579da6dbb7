"""PPO on CartPole-v1: train until 20 test episodes return 475 on average, save the best model, draw the curve.

Run with `make train`, or `python examples/ppo_cartpole.py --out runs/cartpole`.
"""

import argparse
from pathlib import Path

import torch

import rltrainer as rl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/cartpole"), help="folder of the run; a number is added if it is taken"
    )
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)  # networks this small are several times slower on two threads than on one
    rl.seed(args.seed)
    envs = rl.make_vec("CartPole-v1", num_envs=8)
    test_envs = rl.make_vec("CartPole-v1", num_envs=20, seed=1000 + args.seed)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams(lr=rl.LinearSchedule(1e-3)))
    run = rl.RunFolder.new(args.out.name, args.out.parent)
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        test_collector=rl.Collector(algorithm.policy, test_envs),
        max_epochs=2 if args.short else 50,
        epoch_num_steps=4096,
        collection_step_num_env_steps=1024,
        batch_size=256,
        update_step_num_repetitions=10,
        test_step_num_episodes=20,
        stop_fn=lambda score: score >= 475,
        run_folder=run,
        logger=run.logger("tensorboard"),
        seed=args.seed,
    )
    result = rl.OnPolicyTrainer(algorithm, params).run()

    print(f"\nbest score   {result.best_score:.1f} +- {result.best_return_std:.1f} in epoch {result.best_epoch}")
    print(f"env steps    {result.env_step:,} in {result.timing.total:.1f} s; stopped by {result.stop_reason}")
    rl.plots.learning_curve(run.path).savefig(run.path / "learning_curve.png")
    print(f"model        {run.best}")
    print(f"logs         tensorboard --logdir {run.logs}")
    print(f"picture      {run.path / 'learning_curve.png'}")
    print(f"page         {rl.plots.page(run.path)}")

    again = rl.load(run.best)
    same_episodes = rl.make_vec("CartPole-v1", num_envs=20, seed=1000 + args.seed)
    score = rl.Collector(again.policy, same_episodes).collect(num_episodes=20, explore=False).returns.mean()
    print(f"reloaded     {score:.1f} over the same 20 episodes")
    if score != result.best_score:
        raise SystemExit(f"the reloaded model scores {score}, not {result.best_score}")


if __name__ == "__main__":
    main()
