"""The work with rltrainer: the twin of the programs in peers/. Prints one JSON line."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl

sys.path.insert(0, str(Path(__file__).parent / "peers"))  # the peers run with their own folder first, too

import task
from data import buffer_steps, fill, offline_data

PACKAGES = ("rltrainer", "torch", "gymnasium", "numpy")
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (task.OBS_SIZE,), np.float32)
ACTION_SPACE = gym.spaces.Box(-1, 1, (task.ACTION_SIZE,), np.float32)


def run_options(compile_: str, amp: str | None, overlap: bool = False) -> dict[str, Any]:
    """Return the trainer params that say how updates run; `auto` leaves compilation to the trainer.

    Threads are never left to it: every program has one.
    """
    choice: Any = compile_ if compile_ == "auto" else compile_ == "true"
    return {
        "runtime": rl.RuntimeParams(compile=choice, num_threads=1, overlap=overlap),
        "precision": rl.PrecisionParams(amp=amp),  # type: ignore[arg-type]  # the arguments are checked
    }


POLICIES: dict[str, Any] = {
    "ppo": rl.ActorCritic, "a2c": rl.ActorCritic, "dqn": rl.QNetwork, "sac": rl.SquashedActorCritic,
    "td3": rl.DeterministicActorCritic, "td3bc": rl.DeterministicActorCritic, "iql": rl.GaussianActorCritic,
    "bc": rl.Actor,
}  # fmt: skip


def make_algorithm(work: task.Work, observation_space: Any, action_space: Any, device: str = "cpu") -> Any:
    """Return the algorithm with the policy that the work says, on a device."""
    nets: dict[str, Any] = {"hidden_sizes": work.hidden_sizes}
    if work.kind in ("ppo", "a2c", "bc"):
        is_tanh = work.kind != "bc" and not work.has_images
        nets |= {"activation": torch.nn.Tanh if is_tanh else torch.nn.ReLU}
    if work.kind == "ppo":
        nets |= {"share_encoder": work.has_images}
    policy = POLICIES[work.kind](observation_space, action_space, **nets).to(device)
    shared = {"lr": work.lr, "gamma": task.GAMMA}
    on_policy = shared | {"entropy_coef": 0.0, "value_coef": task.VALUE_COEF, "max_grad_norm": task.MAX_GRAD_NORM}
    match work.kind:
        case "ppo":
            return rl.PPO(policy, rl.PPOParams(gae_lambda=task.GAE_LAMBDA, clip=task.CLIP, **on_policy))
        case "a2c":
            return rl.A2C(policy, rl.A2CParams(gae_lambda=1.0, **on_policy))
        case "dqn":
            target = {
                "tau": 1.0,
                "target_update_interval": task.DQN_TARGET_INTERVAL,
                "max_grad_norm": task.DQN_MAX_GRAD_NORM,
            }
            return rl.DQN(policy, rl.DQNParams(epsilon=task.DQN_EPSILON, **target, **shared))
        case "sac":
            return rl.SAC(policy, rl.SACParams(critic_lr=work.lr, tau=task.TAU, **shared))
        case "td3":
            return rl.TD3(policy, rl.TD3Params(tau=task.TAU, **shared))
        case "td3bc":
            return rl.TD3BC(policy, rl.TD3BCParams(tau=task.TAU, **shared))
        case "iql":
            return rl.IQL(policy, rl.IQLParams(tau=task.TAU, **shared))
    return rl.BC(policy, rl.BCParams(lr=work.lr))


def make_trainer(work: task.Work, envs: Any, options: dict[str, Any], device: str = "cpu") -> Any:
    """Return the online trainer, an epoch of which is one chunk."""
    spaces = (envs.single_observation_space, envs.single_action_space)
    algorithm = make_algorithm(work, *spaces, device)
    if work.kind in ("ppo", "a2c"):
        is_ppo = work.kind == "ppo"
        params = rl.OnPolicyTrainerParams(
            training_collector=rl.Collector(algorithm.policy, envs),
            collection_step_num_env_steps=work.chunk if is_ppo else task.A2C_ROLLOUT,
            batch_size=work.batch_size,
            update_step_num_repetitions=work.repeat,
            **options,
        )
        return rl.OnPolicyTrainer(algorithm, params)
    buffer = rl.ReplayBuffer(task.REPLAY_SIZE, *spaces, num_envs=work.num_envs, device=device)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs, buffer),
        collection_step_num_env_steps=work.num_envs,
        update_step_num_gradient_steps_per_sample=work.gradient_steps,
        warmup_num_env_steps=work.random_steps,
        batch_size=work.batch_size,
        **options,
    )
    return rl.OffPolicyTrainer(algorithm, params)


def make_offline_trainer(work: task.Work, seed: int, options: dict[str, Any], device: str = "cpu") -> Any:
    """Return the offline trainer, an epoch of which is one chunk of updates."""
    data = offline_data(seed)
    buffer = rl.ReplayBuffer.from_arrays(
        observations=data["obs"],
        actions=data["action"],
        rewards=data["reward"],
        next_observations=data["next_obs"],
        terminations=data["terminated"],
        truncations=data["truncated"],
        observation_space=OBS_SPACE,
        action_space=ACTION_SPACE,
        device=device,
    )
    params = rl.OfflineTrainerParams(buffer=buffer, batch_size=work.batch_size, **options)
    return rl.OfflineTrainer(make_algorithm(work, OBS_SPACE, ACTION_SPACE, device), params)


def training(trainer: Any, chunk: int) -> Callable[[int], int]:
    """Return what trains for so many steps; a backend that spends cells on resets gets no credit for them."""
    trainer.reset()
    is_on_gpu = trainer.algorithm.device.type == "cuda"

    def advance(steps: int) -> int:
        epochs = [trainer.execute_epoch() for _ in range(steps // chunk)]
        if is_on_gpu:
            torch.cuda.synchronize()
        return sum(chunk if e.collect_stats is None else e.collect_stats.num_collected_steps for e in epochs)

    return advance


def collection(work: task.Work, envs: Any) -> Callable[[int], int]:
    """Return what collects so many env steps that nobody learns from."""
    spaces = (envs.single_observation_space, envs.single_action_space)
    policy = make_algorithm(work, *spaces).policy
    buffer = rl.RolloutBuffer(work.chunk // work.num_envs, work.num_envs, *spaces)
    collector = rl.Collector(policy, envs, buffer)

    def advance(steps: int) -> int:
        return sum(collector.collect(num_steps=work.chunk).num_collected_steps for _ in range(steps // work.chunk))

    return advance


def buffer_work(
    work: task.Work, seed: int, size: int = task.BUFFER_SIZE, make_buffer: Any = rl.ReplayBuffer
) -> Callable[[int], int]:
    """Return what adds to, or samples from, a filled replay buffer."""
    buffer = make_buffer(size, OBS_SPACE, ACTION_SPACE, num_envs=task.BUFFER_ENVS, seed=seed)
    steps = buffer_steps(seed)

    def add() -> None:
        buffer.add(**next(steps))

    fill(work, add, size)
    return task.repeated(add if work.kind == "add" else lambda: buffer.sample(work.batch_size))


def main() -> None:
    arguments = task.parser(__doc__)
    arguments.add_argument("--compile", choices=("auto", "true", "false"), default="auto")
    arguments.add_argument("--amp", choices=("bf16",), help="mixed precision")
    arguments.add_argument("--prioritized", action="store_true", help="sample by priority")
    arguments.add_argument("--backend", default="auto", help="of make_vec")
    arguments.add_argument("--overlap", action="store_true", help="step envs while the last update runs")
    args = arguments.parse_args()
    work = task.WORKS[args.work]
    torch.set_num_threads(1)
    rl.seed(args.seed)
    num_epochs = (
        task.num_chunks(work.random_steps, work)
        + task.num_chunks(args.warmup, work)
        + task.num_chunks(args.steps, work)
    )
    options = run_options(args.compile, args.amp, args.overlap) | {
        "max_epochs": num_epochs + 1, "epoch_num_steps": work.chunk, "seed": args.seed, "show_progress": False,
        "verbose": False,
    }  # fmt: skip
    envs = None
    if work.kind in ("add", "sample"):
        make_buffer = rl.PrioritizedReplayBuffer if args.prioritized else rl.ReplayBuffer
        advance = buffer_work(work, args.seed, make_buffer=make_buffer)
    elif work.kind in ("td3bc", "iql", "bc"):
        advance = training(make_offline_trainer(work, args.seed, options, args.device), work.chunk)
    else:
        place = {"device": args.device} if args.backend == "tensor" else {}
        envs = rl.make_vec(work.env_id, num_envs=work.num_envs, backend=args.backend, seed=args.seed, **place)
        trains = work.repeat > 0
        trainer = make_trainer(work, envs, options, args.device) if trains else None
        advance = training(trainer, work.chunk) if trains else collection(work, envs)
    task.measure(work, advance, args, envs, PACKAGES)


if __name__ == "__main__":
    main()
