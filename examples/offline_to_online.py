"""From offline to online: RLPD learns in the env and from data at once, Cal-QL learns from the data first."""

import argparse
from typing import Any

import torch

import rltrainer as rl


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(1)
    envs = rl.make_vec("Pendulum-v1", num_envs=4)
    policy = rl.SquashedActorCritic.for_envs(envs)
    data = rl.ReplayBuffer(20_000, policy.observation_space, policy.action_space, num_envs=4)
    rl.Collector(policy, envs, data).collect(num_steps=2000 if args.short else 20_000, random=True)

    networks = {"hidden_sizes": (64, 64)}
    shared: dict[str, Any] = {
        "data": data,
        "lr": 1e-3,
        "critic_lr": 1e-3,
        "max_epochs": 2 if args.short else 10,
        "test_step_num_episodes": 10,
        "folder": "runs/offline_to_online",
        "seed": 1,
    }
    # Half of each batch is data, the other half is new; both collect with their policies from the first step.
    online: dict[str, Any] = shared | {
        "offline_share": 0.5,
        "num_env_steps": 40 if args.short else 2000,
        "warmup_num_env_steps": 0,
    }
    rlpd = rl.train(
        "Pendulum-v1",
        "redq",
        num_critics=5,
        actor_update_interval=5,
        update_step_num_gradient_steps_per_sample=5.0,  # 20 in the paper, with 10 critics
        **online,
        **networks,
    )
    offline = rl.train(
        "Pendulum-v1",
        "cal_ql",
        num_sampled_actions=4,
        conservative_coef=1.0,
        num_gradient_steps=40 if args.short else 5000,
        **shared,
        **networks,
    )
    # Whole episodes of 200 steps, so that Cal-QL knows their returns. The first test step gives the offline score.
    length = 20 if args.short else 200
    cal_ql = rl.train("Pendulum-v1", offline.algorithm, collection_step_num_env_steps=length, **online)
    scores = [f"{training.info.best_score:.1f}" for training in (rlpd, offline, cal_ql)]
    print(f"best scores: RLPD {scores[0]}; Cal-QL {scores[1]}, then online {scores[2]}")


if __name__ == "__main__":
    main()
