"""PPO on a MuJoCo task with normalised observations and rewards. Needs the extra `mujoco`."""

import argparse

import torch

import rltrainer as rl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="HalfCheetah-v4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(args.seed)
    try:
        envs = rl.make_vec(args.env, num_envs=8)
    except rl.errors.MissingExtraError as error:
        print(f"skipped: {error}")
        return
    policy = rl.ActorCritic.for_envs(envs, normalize_obs=True, normalize_reward=True)
    algorithm = rl.PPO(policy, rl.PPOParams(lr=rl.LinearSchedule(3e-4)))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs),
        test_collector=rl.Collector(policy, rl.make_vec(args.env, num_envs=5)),
        max_epochs=1 if args.short else 15,
        epoch_num_steps=2048 if args.short else 20_480,
        **(rl.PPO.recommended(envs) | {"update_step_num_repetitions": 1 if args.short else 10}),
        test_step_num_episodes=5,
        initial_test=not args.short,
        seed=args.seed,
    )
    result = rl.OnPolicyTrainer(algorithm, params).run()
    print(f"best score {result.best_score:.1f} after {result.env_step:,} env steps")


if __name__ == "__main__":
    main()
