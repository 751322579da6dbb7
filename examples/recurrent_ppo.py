"""RecurrentPPO on CartPole without velocities: a policy that remembers, saved, loaded, and asked by hand."""

import argparse

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl


class NoVelocities(gym.ObservationWrapper):
    """Shows where cart and pole are, and not which way they move."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gym.spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[::2]


def make(num_envs: int) -> gym.vector.VectorEnv:
    return rl.make_vec("CartPole-v1", num_envs, wrappers=[NoVelocities])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(args.seed)
    envs = make(8)
    policy = rl.RecurrentActorCritic.for_envs(envs, cell="lstm", normalize_obs=True, normalize_reward=True)
    # Hyperparameters are RL Zoo's for this env.
    schedules = {"lr": rl.LinearSchedule(1e-3), "clip": rl.LinearSchedule(0.2)}
    algorithm = rl.RecurrentPPO(policy, rl.PPOParams(gamma=0.98, gae_lambda=0.8, **schedules))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs),
        test_collector=rl.Collector(policy, make(20)),
        max_epochs=1 if args.short else 25,
        epoch_num_steps=1024 if args.short else 4096,
        collection_step_num_env_steps=256,  # 32 of each env
        batch_size=256,  # a multiple of 32: a minibatch is what whole envs did
        update_step_num_repetitions=2 if args.short else 10,
        test_step_num_episodes=20,
        stop_fn=lambda score: score >= 450,
        save_best_fn=lambda algorithm: algorithm.save("runs/recurrent_ppo.safetensors"),
        seed=args.seed,
    )
    result = rl.OnPolicyTrainer(algorithm, params).run()
    print(f"best score {result.best_score:.1f} after {result.env_step:,} env steps ({result.stop_reason})")

    best = rl.load_policy("runs/recurrent_ppo.safetensors")
    env = NoVelocities(gym.make("CartPole-v1"))
    obs, _ = env.reset(seed=args.seed)
    memory, num_steps, done = None, 0, False  # without memory an episode begins
    while not done:
        action, memory = best.predict(obs, memory)
        obs, _, terminated, truncated, _ = env.step(action)
        num_steps, done = num_steps + 1, terminated or truncated
    print(f"an episode by hand: {num_steps} steps")


if __name__ == "__main__":
    main()
