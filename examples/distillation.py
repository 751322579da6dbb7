"""Distillation: PPO that sees all of CartPole teaches a student with memory that sees no velocities."""

import argparse

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl


class Groups(gym.ObservationWrapper):
    """Shows where cart and pole are, and apart from that how fast they move."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        low, high = env.observation_space.low, env.observation_space.high
        places, velocities = (gym.spaces.Box(low[k::2], high[k::2], dtype=np.float32) for k in (0, 1))
        self.observation_space = gym.spaces.Dict(places=places, velocities=velocities)

    def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        return {"places": observation[::2], "velocities": observation[1::2]}


def make(num_envs: int) -> gym.vector.VectorEnv:
    return rl.make_vec("CartPole-v1", num_envs, wrappers=[Groups])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(args.seed)
    envs = make(8)
    teacher = rl.ActorCritic.for_envs(envs)
    student = rl.RecurrentActorCritic.for_envs(envs, rl.NetParams(keys=("places",)))

    def train(algorithm: rl.OnPolicyAlgorithm, max_epochs: int, target: float) -> float:
        params = rl.OnPolicyTrainerParams(
            training_collector=rl.Collector(algorithm.policy, envs),
            test_collector=rl.Collector(algorithm.policy, make(20)),
            max_epochs=1 if args.short else max_epochs,
            epoch_num_steps=1024 if args.short else 6144,
            test_step_num_episodes=20,
            stop_fn=lambda score: score >= target,
            seed=args.seed,
            **type(algorithm).recommended(envs),
        )
        return rl.OnPolicyTrainer(algorithm, params).run().best_score

    taught = train(rl.PPO(teacher, rl.PPOParams(lr=1e-3)), 20, 475)
    distillation = rl.Distillation(student, teacher)
    learned = train(distillation, 10, 0.9 * taught)
    print(f"teacher {taught:.1f}, student {learned:.1f}")

    distillation.save("runs/distillation.safetensors")  # the student, its optimizer, and the teacher
    best = rl.load_policy("runs/distillation.safetensors")  # the student
    action, _ = best.predict({"places": np.zeros(2, np.float32)})  # it needs no velocities
    print(f"with the pole upright it pushes to the {('left', 'right')[action]}")


if __name__ == "__main__":
    main()
