"""A2C of Stable-Baselines3 on LunarLander-v3 with RL Zoo's settings: what our recipe's score is set beside.

.peers/sb3/bin/python benchmarks/peers/sb3_lunar_lander.py     with gymnasium[box2d]; prints a score for each of 3 seeds
"""

import torch
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

NUM_EPISODES = 100

if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed in range(1, 4):
        model = A2C(
            "MlpPolicy", make_vec_env("LunarLander-v3", 8, seed=seed), seed=seed, gamma=0.995, n_steps=5,
            learning_rate=lambda remaining: remaining * 8.3e-4, ent_coef=1e-5,
        )  # fmt: skip
        model.learn(200_000)
        fresh = make_vec_env("LunarLander-v3", 10, seed=100_001)
        print(seed, round(evaluate_policy(model, fresh, NUM_EPISODES)[0], 1), flush=True)
