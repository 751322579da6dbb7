"""Read a data set, look at it, and learn from all of it and from its best episodes.

python examples/offline_from_dataset.py                                       with data that it writes itself
python examples/offline_from_dataset.py --dataset mujoco/hopper/medium-v0 --env Hopper-v5     with Minari's

Needs the extras `minari` and `plot`.
"""

import argparse
import os
from pathlib import Path

import torch

import rltrainer as rl


def write(name: str, env: str, short: bool) -> None:
    """Write what somebody might have logged: an agent explores while it learns."""
    envs = rl.make_vec(env, num_envs=4)
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(64, 64))
    log = rl.ReplayBuffer(20_000, envs.single_observation_space, envs.single_action_space, num_envs=4)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs, log),
        max_epochs=1,
        epoch_num_steps=2000 if short else 16_000,
        collection_step_num_env_steps=4,
        update_step_num_gradient_steps_per_sample=0.1 if short else 0.5,
        warmup_num_env_steps=1000,
        batch_size=128,
        seed=1,
    )
    rl.OffPolicyTrainer(rl.SAC(policy, rl.SACParams(lr=1e-3)), params).run()
    rl.datasets.to_minari(log, name, env=env, algorithm_name="SAC, from its first step on")


def train(algorithm: rl.OffPolicyAlgorithm, buffer: rl.ReplayBuffer, short: bool) -> rl.OffPolicyAlgorithm:
    """Train offline; no env is needed for that."""
    params = rl.OfflineTrainerParams(
        buffer=buffer, max_epochs=1, epoch_num_steps=100 if short else 5000, batch_size=256, seed=1
    )
    rl.OfflineTrainer(algorithm, params).run()
    return algorithm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", help="a Minari data set on this machine; without one, it is written")
    parser.add_argument("--env", default="Pendulum-v1", help="to test in")
    parser.add_argument("--folder", type=Path, default=Path("runs/offline_from_dataset"))
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()

    torch.set_num_threads(1)
    rl.seed(1)
    name = args.dataset
    if name is None:
        os.environ["MINARI_DATASETS_PATH"] = str(args.folder.resolve())
        versions = (f"pendulum/learning-v{i}" for i in range(1000))
        name = next(each for each in versions if not (args.folder / each).exists())
        write(name, args.env, args.short)

    buffer = rl.datasets.from_minari(name)
    found = buffer.describe()
    print(found)
    args.folder.mkdir(parents=True, exist_ok=True)
    rl.plots.buffer(buffer, name).savefig(args.folder / "data.png")

    # The policy that was logged was bad at first; a clone of the better half has not seen that. Fewer would not be
    # better: Pendulum's best tenth are the episodes that happened to begin upright, and show no swing.
    spaces = (buffer.observation_space, buffer.action_space)
    best = rl.datasets.best_episodes(buffer, share=0.5)
    iql = train(rl.IQL(rl.GaussianActorCritic.for_spaces(*spaces, normalize_obs=True)), buffer, args.short)
    clone = train(rl.BC(rl.GaussianActorCritic.for_spaces(*spaces, normalize_obs=True)), best, args.short)
    print(f"mean return of the data: {found.score:.0f}")
    for label, algorithm in (("IQL on all of it", iql), ("a clone of its better half", clone)):
        stats = rl.evaluate_policy(algorithm, args.env, num_episodes=2 if args.short else 20, seed=1001)
        print(f"{label}: {stats.returns.mean():.0f}")


if __name__ == "__main__":
    main()
