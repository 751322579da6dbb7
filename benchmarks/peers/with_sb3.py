"""The work with Stable-Baselines3. Runs in its own virtual environment; prints one JSON line."""

from collections.abc import Callable
from typing import Any

import numpy as np
import task
import torch
from data import buffer_steps, fill
from gymnasium import spaces
from sb3_models import training, updates
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

PACKAGES = ("stable-baselines3", "torch", "gymnasium", "numpy")


class NoCallback(BaseCallback):
    """`collect_rollouts` wants one; this does nothing."""

    def _on_step(self) -> bool:
        return True


def make_model(work: task.Work, seed: int, device: str) -> BaseAlgorithm:
    """Return the algorithm; its networks are as the work says, actor and critic apart."""
    envs = make_vec_env(work.env_id, n_envs=work.num_envs, seed=seed)
    activation = torch.nn.Tanh if work.kind in ("ppo", "a2c") else torch.nn.ReLU
    policy: dict[str, Any] = {"net_arch": list(work.hidden_sizes), "activation_fn": activation}
    kind, policy = ("CnnPolicy", {}) if work.has_images else ("MlpPolicy", policy)
    shared: dict[str, Any] = {
        "learning_rate": work.lr, "gamma": task.GAMMA, "seed": seed, "device": device, "verbose": 0
    }  # fmt: skip
    on_policy = {
        "gae_lambda": task.GAE_LAMBDA,
        "ent_coef": 0.0,
        "vf_coef": task.VALUE_COEF,
        "max_grad_norm": task.MAX_GRAD_NORM,
    }
    off_policy = {
        "buffer_size": task.REPLAY_SIZE, "learning_starts": work.random_steps, "batch_size": work.batch_size,
        "train_freq": 1, "gradient_steps": work.gradient_steps,
    }  # fmt: skip
    match work.kind:
        case "ppo":
            return PPO(
                kind, envs, n_steps=work.rollout_size // work.num_envs, batch_size=work.batch_size,
                n_epochs=max(work.repeat, 1), clip_range=task.CLIP, policy_kwargs=policy, **on_policy, **shared,
            )  # fmt: skip
        case "a2c":
            adam = {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 1e-5}}
            steps = task.A2C_ROLLOUT // work.num_envs
            options = on_policy | {"gae_lambda": 1.0, "use_rms_prop": False}
            return A2C("MlpPolicy", envs, n_steps=steps, policy_kwargs=policy | adam, **options, **shared)
        case "dqn":
            return DQN(
                kind, envs, target_update_interval=task.DQN_TARGET_INTERVAL,
                max_grad_norm=task.DQN_MAX_GRAD_NORM, exploration_initial_eps=task.DQN_EPSILON,
                exploration_final_eps=task.DQN_EPSILON, policy_kwargs=policy, **off_policy, **shared,
            )  # fmt: skip
        case "sac":
            return SAC("MlpPolicy", envs, tau=task.TAU, policy_kwargs=policy, **off_policy, **shared)
        case "td3":
            noise = NormalActionNoise(np.zeros(task.ACTION_SIZE), 0.1 * np.ones(task.ACTION_SIZE))
            return TD3(
                "MlpPolicy", envs, tau=task.TAU, action_noise=noise, policy_kwargs=policy, **off_policy, **shared
            )
    raise SystemExit(f"Stable-Baselines3 has no {work.kind}")


def collection(model: PPO) -> Callable[[int], int]:
    """Return what collects so many env steps that nobody learns from."""
    model.learn(model.n_steps * model.n_envs)  # sets up the env, buffer and logger that collect_rollouts uses
    callback = NoCallback()
    callback.init_callback(model)

    def advance(steps: int) -> int:
        for _ in range(steps // (model.n_steps * model.n_envs)):
            model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
        return steps

    return advance


def buffer_work(work: task.Work, seed: int) -> Callable[[int], int]:
    """Return what adds to, or samples from, a filled replay buffer."""
    obs_space = spaces.Box(-np.inf, np.inf, (task.OBS_SIZE,), np.float32)
    action_space = spaces.Box(-1, 1, (task.ACTION_SIZE,), np.float32)
    buffer = ReplayBuffer(task.BUFFER_SIZE, obs_space, action_space, "cpu", n_envs=task.BUFFER_ENVS)
    steps = buffer_steps(seed)
    running: list[dict[str, Any]] = [{} for _ in range(task.BUFFER_ENVS)]
    truncated: list[dict[str, Any]] = [{"TimeLimit.truncated": True}] * task.BUFFER_ENVS

    def add() -> None:
        step = next(steps)
        done = step["terminated"] | step["truncated"]
        infos = truncated if done.any() else running
        buffer.add(step["obs"], step["next_obs"], step["action"], step["reward"], done, infos)

    fill(work, add)
    return task.repeated(add if work.kind == "add" else lambda: buffer.sample(work.batch_size))


def main() -> None:
    args = task.parser(__doc__).parse_args()
    work = task.WORKS[args.work]
    torch.set_num_threads(1)
    if work.kind in ("add", "sample"):
        task.measure(work, buffer_work(work, args.seed), args, None, PACKAGES)
        return
    model = make_model(work, args.seed, args.device)
    trains = training(model) if work.repeat else collection(model)
    advance = updates(model, work) if work.at_once else trains
    task.measure(work, advance, args, model.env, PACKAGES)


if __name__ == "__main__":
    main()
