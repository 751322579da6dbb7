"""Programs of one seed, which processes import from here."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import rltrainer as rl
from tests.fakes import counting_envs, tiny_actor_critic


def make_trainer(
    seed: int, folder: Path | None = None, failing: int | None = None, max_epochs: int = 2, pause: float = 0.0
) -> Any:
    """Return a trainer of a tiny PPO, which waits in each training step."""
    if seed == failing:
        raise ValueError(f"seed {seed} is bad")
    envs = counting_envs(2)
    algorithm = rl.PPO(tiny_actor_critic(envs))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        test_collector=rl.Collector(algorithm.policy, counting_envs(2)),
        max_epochs=max_epochs, epoch_num_steps=20, collection_step_num_env_steps=10, seed=seed,
        training_fn=lambda epoch, env_step: time.sleep(pause), runtime=rl.RuntimeParams(compile=False),
        run_folder=None if folder is None else rl.RunFolder(folder / str(seed)),
    )  # fmt: skip
    return rl.OnPolicyTrainer(algorithm, params)


def describe_process(seed: int) -> tuple[int, int, float, float]:
    """Return the process, its threads, and numbers of its global generators."""
    return os.getpid(), torch.get_num_threads(), float(torch.rand(())), float(torch.rand(()))


def die_or_return(seed: int) -> Any:
    """Return the seed, something that cannot travel back, or nothing, as it dies."""
    if seed == 1:
        os._exit(7)
    return (lambda: seed) if seed == 2 else seed


if __name__ == "__main__":
    import functools

    rl.run_seeds(functools.partial(make_trainer, folder=Path(sys.argv[1]), max_epochs=10_000, pause=0.05), range(3),
                 num_processes=2)  # fmt: skip
