"""Hooks: log your own numbers, stop by a score, and keep all of a run in one folder."""

import argparse
from pathlib import Path
from typing import Any

import torch

import rltrainer as rl


class ShareOfStays(rl.TrainerHook):
    """Logs how often the policy pushed to the same side as in the step before."""

    def pre_steps_log(self, ctx: rl.TrainerContext, batch: rl.Rollout) -> dict[str, Any]:
        stays = batch.action[1:] == batch.action[:-1]
        return {"share_of_stays": stays.float().mean(), "log_pbar": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--amp", choices=["bf16", "fp16"], help="the format of matrix products; float32 without")
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(1)
    run = rl.RunFolder.new("hooks", root=args.out)
    envs = rl.make_vec("CartPole-v1", num_envs=8)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams(lr=1e-3))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        test_collector=rl.Collector(algorithm.policy, rl.make_vec("CartPole-v1", num_envs=10)),
        max_epochs=1 if args.short else 30,
        epoch_num_steps=2048 if args.short else 4096,
        collection_step_num_env_steps=1024,
        batch_size=256,
        update_step_num_repetitions=10,
        test_step_num_episodes=10,
        hooks=[
            ShareOfStays(),
            rl.LogScalar("action", std=True, every=rl.Every(4096, "env_step")),
            rl.EarlyStopping("score", patience=5),  # five test steps without a better one
            rl.LogTiming(every=4),
            rl.SystemStats(),
        ],
        update=rl.UpdateParams(max_grad_norm=0.5, nonfinite="skip"),
        precision=rl.PrecisionParams(amp=args.amp),
        logger=run.logger("tensorboard", training_interval=1024),
        save_best_fn=run.save_best,
        seed=1,
    )
    result = rl.OnPolicyTrainer(algorithm, params).run()
    print(f"best score {result.best_score:.0f} after {result.env_step:,} env steps ({result.stop_reason})")
    print(f"all of the run is in {run.path}")


if __name__ == "__main__":
    main()
