"""PPO on CartPole-v1: train until 20 test episodes return 475 on average, save the best model, draw the curve.

Run with `make train`, or `python examples/ppo_cartpole.py --out runs/cartpole`.
"""

import argparse
from pathlib import Path

import torch

import rltrainer as rl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/cartpole"), help="folder for logs, model and picture")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)  # networks this small are several times slower on two threads than on one
    rl.seed(args.seed)
    envs = rl.make_vec("CartPole-v1", num_envs=8)
    test_envs = rl.make_vec("CartPole-v1", num_envs=20, seed=1000 + args.seed)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams(lr=rl.LinearSchedule(1e-3)))
    best_model = args.out / "best.safetensors"
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
        save_best_fn=lambda algorithm: algorithm.save(best_model),
        logger=rl.TensorBoardLogger(args.out),
        seed=args.seed,
    )
    result = rl.OnPolicyTrainer(algorithm, params).run()

    print(f"\nbest score   {result.best_score:.1f} +- {result.best_return_std:.1f} in epoch {result.best_epoch}")
    print(f"env steps    {result.env_step:,} in {result.timing.total:.1f} s; stopped by {result.stop_reason}")
    print(f"model        {best_model}")
    print(f"logs         tensorboard --logdir {args.out}")
    print(f"picture      {draw_curve(result, args.out / 'learning_curve.png')}")

    again = rl.load(best_model)
    same_episodes = rl.make_vec("CartPole-v1", num_envs=20, seed=1000 + args.seed)
    score = rl.Collector(again.policy, same_episodes).collect(num_episodes=20, explore=False).returns.mean()
    print(f"reloaded     {score:.1f} over the same 20 episodes")
    if score != result.best_score:
        raise SystemExit(f"the reloaded model scores {score}, not {result.best_score}")


def draw_curve(result: rl.InfoStats, path: Path) -> Path:
    """Draw test and training return over env steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    env_steps, test, training, total = [], [], [], 0
    for epoch in result.epochs:
        total += epoch.collect_stats.num_env_steps
        env_steps.append(total)
        test.append(epoch.test_stats.returns.mean())
        training.append(epoch.collect_stats.returns.mean())
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(env_steps, test, label="test, greedy")
    axes.plot(env_steps, training, label="training, exploring", alpha=0.6)
    axes.axhline(475, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xlabel="env steps", ylabel="mean return", title="PPO on CartPole-v1")
    axes.legend()
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    main()
