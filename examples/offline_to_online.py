"""IQL offline, then online: the same algorithm object, first on saved data and then on its own."""

import argparse

import torch

import rltrainer as rl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(1)
    envs = rl.make_vec("Pendulum-v1", num_envs=4)
    policy = rl.GaussianActorCritic.for_envs(envs, hidden_sizes=(64, 64))
    algorithm = rl.IQL(policy, rl.IQLParams(lr=1e-3))
    test = rl.Collector(policy, rl.make_vec("Pendulum-v1", num_envs=10))

    data = rl.ReplayBuffer(40_000, envs.single_observation_space, envs.single_action_space, num_envs=4)
    rl.Collector(policy, envs, data).collect(num_steps=2000 if args.short else 20_000, random=True)
    offline = rl.OfflineTrainerParams(
        buffer=data,
        test_collector=test,
        test_step_num_episodes=10,
        max_epochs=1 if args.short else 3,
        epoch_num_steps=100 if args.short else 1000,
        **rl.IQL.recommended(),
        seed=1,
    )
    before = rl.OfflineTrainer(algorithm, offline).run()

    online = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs, data),  # the offline data stays in the buffer
        test_collector=test,
        test_step_num_episodes=10,
        max_epochs=1 if args.short else 3,
        epoch_num_steps=200 if args.short else 4000,
        collection_step_num_env_steps=4,
        update_step_num_gradient_steps_per_sample=0.5,
        batch_size=256,
        seed=1,
    )
    after = rl.OffPolicyTrainer(algorithm, online).run()
    print(f"offline: best score {before.best_score:.1f}; then online: {after.best_score:.1f}")


if __name__ == "__main__":
    main()
