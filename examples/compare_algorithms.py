"""Compare two algorithms on two tasks, several seeds each, from their logs: curves, profiles, and a page of each run.

Run with `python examples/compare_algorithms.py --out runs/compare`. On two cores it takes some two minutes.
"""

import argparse
import functools
from pathlib import Path

import rltrainer as rl

ALGORITHMS = {"PPO": rl.PPO, "A2C": rl.A2C}
TASKS = {"CartPole-v1": (20.0, 500.0), "Acrobot-v1": (-500.0, -80.0)}
"""Each task with the returns that count as 0 and 1: of random actions, and of a good agent."""


def make_trainer(seed: int, algorithm: str, env: str, folder: Path, num_epochs: int) -> rl.OnPolicyTrainer:
    """Return the trainer of one run; started again, it resumes in its folder."""
    envs = rl.make_vec(env, num_envs=8)
    cls = ALGORITHMS[algorithm]
    learner = cls(rl.ActorCritic.for_envs(envs), cls.params_class(lr=rl.LinearSchedule(1e-3)))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(learner.policy, envs),
        test_collector=rl.Collector(learner.policy, rl.make_vec(env, num_envs=10, seed=1000 + seed)),
        max_epochs=num_epochs,
        epoch_num_steps=4096,
        collection_step_num_env_steps=1024,
        batch_size=256,
        update_step_num_repetitions=4,
        test_step_num_episodes=10,
        run_folder=rl.RunFolder(folder / str(seed)),
        seed=seed,
    )
    return rl.OnPolicyTrainer(learner, params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="folder for runs and pictures")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="a few seconds only, to see that it runs")
    args = parser.parse_args()
    num_epochs, num_seeds = (2, 2) if args.short else (16, args.seeds)

    runs = {}
    for algorithm in ALGORITHMS:
        for env in TASKS:
            folder = args.out / algorithm / env
            make = functools.partial(make_trainer, algorithm=algorithm, env=env, folder=folder, num_epochs=num_epochs)
            seeds = rl.run_seeds(make, range(1, num_seeds + 1))
            runs[algorithm, env] = [folder / str(run.seed) for run in seeds]

    for env in TASKS:
        figure = rl.plots.learning_curves({algorithm: runs[algorithm, env] for algorithm in ALGORITHMS}, title=env)
        figure.savefig(args.out / f"{env}.png")
    scores = {a: rl.plots.run_scores({env: runs[a, env] for env in TASKS}, TASKS) for a in ALGORITHMS}
    rl.plots.performance_profiles(scores).savefig(args.out / "profiles.png")
    rl.plots.aggregate_scores(scores).savefig(args.out / "aggregates.png")
    rl.plots.probability_of_improvement(scores).savefig(args.out / "better.png")
    better = rl.scores.probability_of_improvement(scores["PPO"], scores["A2C"])
    print(f"a run of PPO beats one of A2C with probability {better:.2f}")
    for path in [path for folders in runs.values() for path in folders]:
        rl.plots.page(path)
    print(f"pictures and pages in {args.out}")


if __name__ == "__main__":
    main()
