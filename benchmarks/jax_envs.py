"""Envs of gymnax and Brax as tensors: gymnax's CartPole beside gymnasium's, a state that is loaded, and PPO in both.

JAX is no dependency of rltrainer, so this runs in a virtual environment of its own:

    python -m venv benchmarks/.peers/jax_envs
    benchmarks/.peers/jax_envs/bin/pip install . "jax==0.10.*" "gymnax==0.0.9" "brax==0.14.*" six
    benchmarks/.peers/jax_envs/bin/python benchmarks/jax_envs.py --write
"""

import argparse
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import gymnax
import numpy as np
import torch
from brax.envs import get_environment

import rltrainer as rl

REPORT = Path(__file__).parents[1] / "docs/measurements/jax_envs.md"
PACKAGES = ("torch", "jax", "gymnax", "brax", "gymnasium")


def largest_difference(num_envs: int = 8, num_steps: int = 2000) -> float:
    """Step gymnax's CartPole and gymnasium's with random actions; return how much observations differ at most.

    Rewards and terminations must be equal; final observations are compared, too.
    """
    envs = rl.GymnaxVectorEnv(*gymnax.make("CartPole-v1"), num_envs=num_envs)
    singles: list[Any] = [gym.make("CartPole-v1").unwrapped for _ in range(num_envs)]
    generator, worst = torch.Generator().manual_seed(1), 0.0
    obs, _ = envs.reset(seed=1)
    for single, row in zip(singles, obs, strict=True):
        single.reset()
        single.state = row.numpy().astype(np.float64)
    for _ in range(num_steps):
        # Mostly the better action, so that episodes are long, too.
        wise = (obs[:, 2] + 0.5 * obs[:, 3] > 0).long()
        action = torch.where(torch.rand(num_envs, generator=generator) < 0.8, wise, 1 - wise)
        obs, reward, terminated, truncated, info = envs.step(action)
        for n, single in enumerate(singles):
            their_obs, their_reward, ended, *_ = single.step(int(action[n]))
            assert (their_reward, ended) == (float(reward[n]), bool(terminated[n]))
            worst = max(worst, float(np.abs(their_obs - info["final_obs"][n].numpy()).max()))
            if terminated[n] or truncated[n]:
                single.reset()
            single.state = obs[n].numpy().astype(np.float64)  # float32 and float64 drift apart
    return worst


def continues_bit_for_bit() -> bool:
    """Return whether envs that loaded a state step as those that it is of."""
    envs, others = (rl.GymnaxVectorEnv(*gymnax.make("CartPole-v1"), num_envs=8) for _ in range(2))
    envs.reset(seed=1)
    others.reset(seed=2)
    others.load_state_dict(envs.state_dict())
    action = torch.ones(8, dtype=torch.int64)
    return all(torch.equal(envs.step(action)[0], others.step(action)[0]) for _ in range(100))


def train(make_envs: Callable[[int], gym.vector.VectorEnv[Any, Any, Any]], num_steps: int) -> tuple[float, float]:
    """Train PPO with seed 1; return the mean returns of 20 greedy episodes before and after."""
    rl.seed(1)
    envs, test_envs = make_envs(8), make_envs(10)
    policy = rl.ActorCritic.for_envs(envs, normalize_obs=True)
    before = rl.evaluate_policy(policy, test_envs, num_episodes=20).returns_stat.mean
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs), max_epochs=1, epoch_num_steps=num_steps,
        collection_step_num_env_steps=8 * 256, batch_size=64, update_step_num_repetitions=4, seed=1,
    )  # fmt: skip
    rl.OnPolicyTrainer(rl.PPO(policy), params).run()
    return before, rl.evaluate_policy(policy, test_envs, num_episodes=20).returns_stat.mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}")
    parser.add_argument("--steps", type=int, default=200_000, help="env steps of each training")
    args = parser.parse_args()
    lines = [
        f"- Observations differ from gymnasium's by {largest_difference():.1e} at most; rewards and ends are equal.",
        f"- A loaded state continues bit for bit: {continues_bit_for_bit()}.",
    ]
    for name, make_envs in MAKERS.items():
        before, after = train(make_envs, args.steps)
        lines.append(f"- PPO, {name}, {args.steps:,} env steps: mean return {before:.0f} before, {after:.0f} after.")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    text = "\n".join(
        ["# Envs of gymnax and Brax", "", f"`python benchmarks/jax_envs.py`, on the CPU: {versions}.", "", *lines]
    )
    print(text)
    if args.write:
        REPORT.write_text(text + "\n", encoding="utf-8")


MAKERS = {
    "gymnax CartPole-v1": lambda num_envs: rl.GymnaxVectorEnv(*gymnax.make("CartPole-v1"), num_envs=num_envs),
    "Brax inverted_pendulum (generalized)": lambda num_envs: rl.BraxVectorEnv(
        get_environment("inverted_pendulum", backend="generalized"), num_envs, episode_length=500
    ),
}

if __name__ == "__main__":
    main()
