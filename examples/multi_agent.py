"""IPPO: three agents that share one policy learn to cover three landmarks (mpe2's simple_spread), and play."""

import argparse
from typing import Any

import torch
from mpe2 import simple_spread_v3

import rltrainer as rl


def make_env() -> Any:
    return simple_spread_v3.parallel_env(max_cycles=25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(args.seed)
    envs, test_envs = rl.AgentsAsEnvs(make_env, 8), rl.AgentsAsEnvs(make_env, 10)
    policy = rl.ActorCritic.for_envs(envs, normalize_obs=True, normalize_reward=True)
    algorithm = rl.PPO(policy, rl.PPOParams(lr=rl.LinearSchedule(2e-3), gamma=0.95, entropy_coef=0.01))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs, info_keys=("team_return",)),
        test_collector=rl.Collector(policy, test_envs, info_keys=("team_return",)),
        compute_score_fn=lambda stats: stats.info_means["team_return"],
        max_epochs=1 if args.short else 25,
        epoch_num_steps=2400 if args.short else 4800,
        collection_step_num_env_steps=2400,  # 100 of each of 24 agents
        batch_size=600,
        update_step_num_repetitions=1 if args.short else 10,
        test_step_num_episodes=90,  # of agents: 30 of teams
        save_best_fn=lambda algorithm: algorithm.save("runs/simple_spread.safetensors"),
        seed=args.seed,
    )
    result = rl.OnPolicyTrainer(algorithm, params).run()
    print(f"best team return {result.best_score:.1f} after {result.env_step:,} steps of agents")

    best, env, team_return = rl.load_policy("runs/simple_spread.safetensors"), make_env(), 0.0
    observations, _ = env.reset(seed=args.seed)
    while env.agents:
        actions = {agent: best.predict(observations[agent]) for agent in env.agents}
        observations, rewards, *_ = env.step(actions)
        team_return += sum(rewards.values())
    print(f"an episode in PettingZoo itself: team return {team_return:.1f}")


if __name__ == "__main__":
    main()
