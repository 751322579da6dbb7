"""PPO on CartPole-v1, trained twice: once undisturbed, once killed five times at random. Both reach the same weights.

Each life of the killed run is a process of its own, which resumes from the newest checkpoint by itself.
Run with `python examples/kill_and_resume.py`; it takes less than a minute.
"""

import argparse
import csv
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import rltrainer as rl

READY = "training"
"""The line that a life prints when it begins to train."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="kill once only, to see that it runs")
    parser.add_argument("--seed", type=int, help="of the moments of the kills; other ones each time by default")
    parser.add_argument("--train", type=Path, metavar="FOLDER", help="what a life does: train in this folder")
    args = parser.parse_args()
    if args.train is not None:
        train(args.train)
        return
    with tempfile.TemporaryDirectory() as folder:
        chance = random.Random(args.seed)
        whole = run_to_the_end(Path(folder) / "whole", 0, chance)
        killed = run_to_the_end(Path(folder) / "killed", 1 if args.short else 5, chance)
    print("equal, bit for bit" if whole == killed else "NOT EQUAL")
    raise SystemExit(whole != killed)


def train(folder: Path) -> None:
    """Train in a folder, or resume the training there; print its result at the end."""
    torch.set_num_threads(1)
    rl.seed(1)
    envs = rl.make_vec("CartPole-v1", num_envs=8)
    test_envs = rl.make_vec("CartPole-v1", num_envs=10, seed=1001)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams(lr=rl.LinearSchedule(1e-3)))
    run = rl.RunFolder(folder)
    logger = rl.CSVLogger(run.logs / "log.csv")
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        test_collector=rl.Collector(algorithm.policy, test_envs),
        max_epochs=8,
        epoch_num_steps=4096,
        collection_step_num_env_steps=1024,
        batch_size=256,
        update_step_num_repetitions=10,
        test_step_num_episodes=10,
        logger=logger,
        checkpoint=rl.CheckpointParams(run.checkpoints, every=rl.Every(1, "training_step")),  # all it takes
        seed=1,
        verbose=False,
        show_progress=False,
    )
    print(READY, flush=True)
    result = rl.OnPolicyTrainer(algorithm, params).run()
    algorithm.save(folder / "algorithm.safetensors")
    weights = hashlib.sha256((folder / "algorithm.safetensors").read_bytes()).hexdigest()[:16]
    print(f"{result.env_step:,} env steps, algorithm {weights}, rows of the log {hash_of_rows(logger.path)}")


def hash_of_rows(log: Path) -> str:
    """Return a hash of a log's rows, but for what is measured in seconds."""
    with open(log, newline="") as file:
        rows = [row for row in csv.reader(file) if "per_second" not in row[1]]  # of step, name, value
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def run_to_the_end(folder: Path, num_kills: int, chance: random.Random) -> str:
    """Let one life after the other train in a folder, and kill so many of them; return what the last one printed."""
    for number in range(num_kills + 1):
        life = subprocess.Popen([sys.executable, __file__, "--train", folder], stdout=subprocess.PIPE, text=True)
        assert life.stdout is not None
        life.stdout.readline()  # READY
        if number < num_kills:
            delay = chance.uniform(0.1, 1.0)
            time.sleep(delay)
            life.kill()
            print(f"{folder.name}: killed after {delay:.2f} s", flush=True)
        outcome = life.communicate()[0].strip()
    print(f"{folder.name}: {outcome}", flush=True)
    return outcome


if __name__ == "__main__":
    main()
