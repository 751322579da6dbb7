"""A curriculum: PPO before a row of doors, of which more and more are shut as it learns; and without one."""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl


class Doors(gym.Env[Any, Any]):
    """Doors in a row, each with its key: a wrong key ends the episode, and only the last door is rewarded."""

    keys = (0, 2, 1, 1, 0, 2, 0, 1, 2, 2, 1, 0)
    observation_space = gym.spaces.Box(0.0, 1.0, (13,))
    action_space = gym.spaces.Discrete(3)
    difficulty = 1.0  # the share of the doors that are shut

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.door = len(self.keys) - max(1, round(len(self.keys) * self.difficulty))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        fits = bool(action == self.keys[self.door])
        self.door += fits
        is_out = self.door == len(self.keys)
        return self._obs(), float(is_out), is_out or not fits, False, {"is_success": is_out}

    def _obs(self) -> Any:
        return np.eye(13, dtype=np.float32)[self.door]


def train(has_curriculum: bool, max_epochs: int) -> rl.InfoStats:
    """Return a run whose score is the success rate at difficulty 1."""
    rl.seed(1)
    envs, test_envs = rl.make_vec(Doors, num_envs=8), rl.make_vec(Doors, num_envs=10)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams(lr=1e-3))

    def set_difficulty(epoch: int, env_step: int) -> None:
        envs.set_attr("difficulty", min(1.0, 0.1 + env_step / 30_000))

    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs, info_keys=["is_success"]),
        test_collector=rl.Collector(algorithm.policy, test_envs, info_keys=["is_success"]),
        training_fn=set_difficulty if has_curriculum else None,
        compute_score_fn=lambda stats: stats.success_rate or 0.0,
        stop_fn=lambda success_rate: success_rate == 1.0,
        collection_step_num_env_steps=1024,
        epoch_num_steps=8192,
        max_epochs=max_epochs,
        update_step_num_repetitions=4,
        test_step_num_episodes=10,
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
    for name, has_curriculum in (("without", False), ("with", True)):
        result = train(has_curriculum, max_epochs=1 if args.short else 8)
        print(f"{name} a curriculum: passes all doors in {result.best_score:.0%} after {result.env_step:,} env steps")


if __name__ == "__main__":
    main()
