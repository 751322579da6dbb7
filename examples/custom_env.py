"""Your own env with Dict observations: nothing to adapt, PPO reads the spaces."""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl


class FindTheNumber(gym.Env[Any, Any]):
    """Move a marker on a line to the target cell; the target is a choice, the position a number."""

    observation_space = gym.spaces.Dict(
        position=gym.spaces.Box(0.0, 1.0, (1,), np.float32), target=gym.spaces.Discrete(5)
    )
    action_space = gym.spaces.Discrete(3)  # left, stay, right

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position, self.target = (int(n) for n in self.np_random.integers(0, 5, 2))
        self.num_steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position = int(np.clip(self.position + int(action) - 1, 0, 4))
        self.num_steps += 1
        found = self.position == self.target
        return self._obs(), 1.0 if found else -0.1, found, self.num_steps >= 20, {}

    def _obs(self) -> dict[str, Any]:
        return {"position": np.array([self.position / 4], np.float32), "target": self.target}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(1)
    envs = rl.make_vec(FindTheNumber, num_envs=8)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams(lr=1e-3, entropy_coef=0.01))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        test_collector=rl.Collector(algorithm.policy, rl.make_vec(FindTheNumber, num_envs=10)),
        max_epochs=1 if args.short else 15,
        epoch_num_steps=2048,
        collection_step_num_env_steps=512,
        update_step_num_repetitions=4,
        test_step_num_episodes=100,
        stop_fn=lambda score: score > 0.8,
        seed=1,
    )
    result = rl.OnPolicyTrainer(algorithm, params).run()
    print(f"best score {result.best_score:.2f} after {result.env_step:,} env steps")


if __name__ == "__main__":
    main()
