"""Stable-Baselines3's PPO on CartPole-v1, timed. Runs in its own virtual environment; prints one JSON line."""

import argparse
import importlib.metadata
import json
import time

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

NUM_ENVS = 8
ROLLOUT_STEPS = 2048


class NoCallback(BaseCallback):
    """`collect_rollouts` wants one; this does nothing."""

    def _on_step(self) -> bool:
        return True


def make_model(batch_size: int, repeat: int, seed: int) -> PPO:
    envs = make_vec_env("CartPole-v1", n_envs=NUM_ENVS, seed=seed)
    return PPO(
        "MlpPolicy",  # separate actor and critic, 64-64 tanh
        envs,
        learning_rate=3e-4,
        n_steps=ROLLOUT_STEPS // NUM_ENVS,
        batch_size=batch_size,
        n_epochs=repeat,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.0,
        vf_coef=0.5,
        max_grad_norm=0.5,
        seed=seed,
        device="cpu",
        verbose=0,
    )


def time_training(model: PPO, warmup: int, steps: int) -> tuple[int, float]:
    model.learn(warmup)
    start = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps, time.perf_counter() - start


def time_collection(model: PPO, warmup: int, steps: int) -> tuple[int, float]:
    model.learn(ROLLOUT_STEPS)  # sets up the env, buffer and logger that collect_rollouts uses
    callback = NoCallback()
    callback.init_callback(model)

    def collect(num_steps: int) -> None:
        for _ in range(num_steps // ROLLOUT_STEPS):
            model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)

    collect(warmup)
    start = time.perf_counter()
    collect(steps)
    return steps, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=4, help="0: collection alone")
    parser.add_argument("--warmup", type=int, default=8192, help="env steps")
    parser.add_argument("--steps", type=int, default=40960, help="env steps")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(1)
    model = make_model(args.batch_size, max(args.repeat, 1), args.seed)
    measure = time_training if args.repeat else time_collection
    steps, seconds = measure(model, args.warmup, args.steps)
    versions = {n: importlib.metadata.version(n) for n in ("stable-baselines3", "torch", "gymnasium", "numpy")}
    print(json.dumps({"steps": steps, "seconds": seconds, "envs": type(model.env).__name__, "versions": versions}))


if __name__ == "__main__":
    main()
