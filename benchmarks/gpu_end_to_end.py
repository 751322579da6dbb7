"""Env steps per second of whole trainings on a CUDA device: envs on the host, acting, storing and updates included.

Each case is trained with acting launched kernel by kernel, as a CUDA graph, and, off policy, while the last update
runs. Steps of the warm-up, in which everything is recorded, are not timed.
"""

import argparse
import dataclasses
import statistics
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from speed import machine

import rltrainer as rl

PLAIN, GRAPH = rl.RuntimeParams(cuda_graph=False), rl.RuntimeParams()
OVERLAP = rl.RuntimeParams(overlap=True)
FRAMES = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)


class Frames(gym.Env[Any, Any]):
    """Made-up frames, which cost nothing; episodes of 500 steps."""

    observation_space, action_space = FRAMES, gym.spaces.Discrete(4)

    def __init__(self) -> None:
        self.frames = np.random.default_rng(1).integers(0, 256, (16, *FRAMES.shape), np.uint8)
        self.num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        return self.frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        return self.frames[self.num_steps % 16], float(action == 0), False, self.num_steps >= 500, {}


@dataclasses.dataclass(frozen=True)
class Case:
    """What is trained, in how many envs, and how many env steps per second are aimed at."""

    name: str
    algorithm: type[Any]
    policy: type[Any]
    env: Any
    goal: int
    num_envs: int = 1
    batch_size: int = 256
    gradient_steps: float = 1.0
    """Off policy, for each env step."""


CASES = {
    "sac": Case("SAC HalfCheetah, 1 update a step", rl.SAC, rl.SquashedActorCritic, "HalfCheetah-v5", 1500),
    "dqn": Case("DQN CartPole, 1 update a step", rl.DQN, rl.QNetwork, "CartPole-v1", 1500, batch_size=64),
    "dqn-images": Case("DQN, images, 8 envs, 1 update in 4 steps", rl.DQN, rl.QNetwork, Frames, 4000, 8, 32, 0.25),
    "ppo-images": Case("PPO, images, 8 envs", rl.PPO, rl.ActorCritic, Frames, 15_000, 8),
}


def make(case: Case, runtime: rl.RuntimeParams, num_steps: int, device: str) -> Any:
    """Return a trainer of two epochs of so many env steps."""
    rl.seed(1)
    envs = rl.make_vec(case.env, case.num_envs, seed=1, backend="sync" if case.env is Frames else "auto")
    policy = case.policy.for_envs(envs).to(device)
    algorithm = case.algorithm(policy)
    common: dict[str, Any] = {
        "max_epochs": 2, "epoch_num_steps": num_steps, "runtime": runtime, "batch_size": case.batch_size, "seed": 1,
        "verbose": False, "show_progress": False,
    }  # fmt: skip
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        params: Any = rl.OnPolicyTrainerParams(
            training_collector=rl.Collector(policy, envs), collection_step_num_env_steps=128 * case.num_envs,
            update_step_num_repetitions=4, **common,
        )  # fmt: skip
    else:
        spaces = envs.single_observation_space, envs.single_action_space
        capacity = 10_000 if case.env is Frames else 1_000_000
        buffer = rl.ReplayBuffer(capacity, *spaces, num_envs=case.num_envs, device=device)
        params = rl.OffPolicyTrainerParams(
            training_collector=rl.Collector(policy, envs, buffer), collection_step_num_env_steps=case.num_envs,
            update_step_num_gradient_steps_per_sample=case.gradient_steps,
            warmup_num_env_steps=min(1000, num_steps // 2), **common,
        )  # fmt: skip
    return params.create_trainer(algorithm)


def steps_per_second(case: Case, runtime: rl.RuntimeParams, num_steps: int, device: str) -> float:
    """Time the second epoch of a run."""
    trainer = make(case, runtime, num_steps, device)
    trainer.execute_epoch()
    before, started = trainer.env_step, time.perf_counter()
    trainer.execute_epoch()  # which ends with a look at the device's faults
    return float((trainer.env_step - before) / (time.perf_counter() - started))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="this one only; may be repeated")
    parser.add_argument("--device", default="cuda", help="cpu only shows that the program runs")
    parser.add_argument("--steps", type=int, default=5000, help="env steps of an epoch")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    name = machine() if args.device == "cpu" else f"{torch.cuda.get_device_name()}; {machine()}"
    print(f"{name}; torch {torch.__version__}. Env steps/s, the median of {args.runs} runs of {args.steps} steps.\n")
    print("| | kernel by kernel | CUDA graph | overlapping | goal |\n|---|---|---|---|---|")
    for case in (CASES[name] for name in args.case or CASES):
        can_overlap = args.device != "cpu" and case.algorithm is not rl.PPO
        figures = []
        for runtime in (PLAIN, GRAPH, *([OVERLAP] if can_overlap else [])):
            found = [steps_per_second(case, runtime, args.steps, args.device) for _ in range(args.runs)]
            figures.append(f"{statistics.median(found):,.0f}")
        print(f"| {case.name} | {' | '.join(figures)} | {'' if can_overlap else '| '}{case.goal:,} |", flush=True)


if __name__ == "__main__":
    main()
