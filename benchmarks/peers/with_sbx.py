"""The work with SBX, Stable-Baselines3 in JAX. Runs in its own virtual environment; prints one JSON line."""

import one_core  # noqa: F401, I001  # first: JAX starts its threads when it is imported

from typing import Any

import numpy as np
import task
from flax import linen as nn
from sb3_models import training, updates
from sbx import DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

PACKAGES = ("sbx-rl", "jax", "jaxlib", "flax", "gymnasium", "numpy")


def make_model(work: task.Work, seed: int) -> BaseAlgorithm:
    """Return the algorithm; its networks are as the work says, actor and critic apart."""
    envs = make_vec_env(work.env_id, n_envs=work.num_envs, seed=seed)
    activation = nn.tanh if work.kind == "ppo" else nn.relu
    policy: dict[str, Any] = {"net_arch": list(work.hidden_sizes), "activation_fn": activation}
    kind, policy = ("CnnPolicy", {}) if work.has_images else ("MlpPolicy", policy)
    shared: dict[str, Any] = {"learning_rate": work.lr, "gamma": task.GAMMA, "seed": seed, "policy_kwargs": policy}
    off_policy = {
        "buffer_size": task.REPLAY_SIZE, "learning_starts": work.random_steps, "batch_size": work.batch_size,
        "train_freq": 1, "gradient_steps": work.gradient_steps,
    }  # fmt: skip
    match work.kind:
        case "ppo":
            return PPO(
                kind, envs, n_steps=work.rollout_size // work.num_envs, batch_size=work.batch_size,
                n_epochs=work.repeat, clip_range=task.CLIP, gae_lambda=task.GAE_LAMBDA, ent_coef=0.0,
                vf_coef=task.VALUE_COEF, max_grad_norm=task.MAX_GRAD_NORM, **shared,
            )  # fmt: skip
        case "dqn":
            return DQN(
                kind, envs, target_update_interval=task.DQN_TARGET_INTERVAL,
                exploration_initial_eps=task.DQN_EPSILON, exploration_final_eps=task.DQN_EPSILON,
                **off_policy, **shared,
            )  # fmt: skip
        case "sac":
            return SAC("MlpPolicy", envs, tau=task.TAU, **off_policy, **shared)
        case "td3":
            noise = NormalActionNoise(np.zeros(task.ACTION_SIZE), 0.1 * np.ones(task.ACTION_SIZE))
            return TD3("MlpPolicy", envs, tau=task.TAU, action_noise=noise, **off_policy, **shared)
    raise SystemExit(f"SBX has no {work.kind}")


def main() -> None:
    args = task.parser(__doc__).parse_args()
    work = task.WORKS[args.work]
    model = make_model(work, args.seed)
    advance = updates(model, work) if work.at_once else training(model)
    task.measure(work, advance, args, model.env, PACKAGES)


if __name__ == "__main__":
    main()
