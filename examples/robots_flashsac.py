"""FlashSAC on envs of tensors: 256 robot arms of two joints learn to reach, with a gradient step per 32 env steps."""

import argparse
import math

import gymnasium as gym
import torch
from torch import Tensor

import rltrainer as rl


class Reach(rl.TensorEnv):
    """Bring the hand of an arm to a target, and hold it there; a state has two angles, two velocities, the target."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (10,))
    action_space = gym.spaces.Box(-1.0, 1.0, (2,))
    max_episode_steps = 50
    num_first_uniforms = 4

    def first_state(self, uniform: Tensor) -> Tensor:
        angles = math.pi * (2.0 * uniform[:, :2] - 1.0)
        distance, direction = 0.3 + 1.5 * uniform[:, 2], 2.0 * math.pi * uniform[:, 3]
        target = distance[:, None] * torch.stack([direction.cos(), direction.sin()], -1)
        return torch.cat([angles, torch.zeros_like(angles), target], -1)

    def observe(self, state: Tensor) -> Tensor:
        angles, target = state[:, :2], state[:, 4:]
        return torch.cat([angles.cos(), angles.sin(), state[:, 2:4], target, target - self.hand(angles)], -1)

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        velocity = 0.9 * state[:, 2:4] + 0.5 * action  # friction, and torques of two motors
        angles = state[:, :2] + 0.1 * velocity
        following = torch.cat([angles, velocity, state[:, 4:]], -1)
        distance = (state[:, 4:] - self.hand(angles)).norm(dim=-1)
        return following, -distance - 0.05 * action.square().sum(-1), torch.zeros_like(distance, dtype=torch.bool)

    @staticmethod
    def hand(angles: Tensor) -> Tensor:
        """Return where the hand is [N, 2]: both links have length 1."""
        first, second = angles[:, 0], angles.sum(-1)
        return torch.stack([first.cos() + second.cos(), first.sin() + second.sin()], -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help='"cuda" for thousands of envs')
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(1)
    num_envs = 64 if args.short else 256
    envs = rl.make_vec(Reach, num_envs, backend="tensor", seed=1, device=args.device)
    test_envs = rl.make_vec(Reach, 100, backend="tensor", seed=2, device=args.device)
    block = rl.NetParams(norm="unit_residual", hidden_sizes=(64,))  # small, for a CPU; two of 256 are the default
    options = rl.FlashSAC.policy_options | {"net": block, "critic_net": block, "num_atoms": 51}
    policy = rl.CategoricalActorCritic.for_envs(envs, **options).to(args.device)
    rate = rl.CosineSchedule(1e-3, 5e-4)
    algorithm = rl.FlashSAC(policy, rl.FlashSACParams(lr=rate, critic_lr=rate, gamma=0.95))
    spaces = envs.single_observation_space, envs.single_action_space
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(
            policy, envs, rl.ReplayBuffer(200_000, *spaces, num_envs=num_envs, device=args.device)
        ),
        test_collector=rl.Collector(policy, test_envs),
        test_step_num_episodes=100,
        max_epochs=1 if args.short else 8,
        epoch_num_steps=1280 if args.short else 12_800,
        collection_step_num_env_steps=num_envs,
        update_step_num_gradient_steps_per_sample=1 / 32,
        batch_size=256,
        warmup_num_env_steps=640 if args.short else 5000,
        seed=1,
    )
    result = rl.OffPolicyTrainer(algorithm, params).run()
    print(f"best score {result.best_score:.1f} after {result.env_step:,} env steps")


if __name__ == "__main__":
    main()
