"""Sparse rewards: PPO on a chain whose end alone is rewarded; without a bonus for what is new, and with one (RND)."""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl


class Chain(gym.Env[Any, Any]):
    """One action leads on from each place, the other one back to the start; random play hardly ever gets to the end."""

    ways = (0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1)
    observation_space = gym.spaces.Box(0.0, 1.0, (20,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.place = self.num_steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = self.place + 1 if action == self.ways[self.place] else 0
        self.num_steps += 1
        is_end = self.place == len(self.ways)
        return self._obs(), float(is_end), is_end, self.num_steps == 40, {}

    def _obs(self) -> Any:
        return np.eye(20, dtype=np.float32)[self.place]


def train(has_bonus: bool, max_epochs: int) -> rl.InfoStats:
    """Return a run; its scores are returns of the env, without bonuses."""
    rl.seed(1)
    envs, test_envs = rl.make_vec(Chain, num_envs=8), rl.make_vec(Chain, num_envs=2)
    algorithm: Any = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams(gamma=0.999))
    if has_bonus:  # as in the paper: bonuses have a value of their own
        algorithm = rl.RND(algorithm, rl.RNDParams(separate_value=True, weight=0.5, share=0.25, lr=1e-4))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        test_collector=rl.Collector(algorithm.policy, test_envs),
        collection_step_num_env_steps=256,
        epoch_num_steps=1024,
        max_epochs=max_epochs,
        update_step_num_repetitions=10,
        stop_fn=lambda score: score == 1.0,
        test_step_num_episodes=2,
        show_progress=False,
        verbose=False,
        seed=1,
    )
    return algorithm.run_training(params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    for has_bonus in (False, True):
        result = train(has_bonus, max_epochs=1 if args.short else 10)
        words = "with a bonus" if has_bonus else "without"
        print(f"{words}: best return {result.best_score:.2f}, after {result.env_step:,} env steps", flush=True)


if __name__ == "__main__":
    main()
