"""Runs of several shards: `torchrun sharded.py FOLDER RUNS`, the arguments of `make` as JSON, one run after the other.

Each process writes what its shards have come to, run by run, to `FOLDER/RANK.json`, and how it ended.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

import rltrainer as rl
from rltrainer.errors import RankLostError
from tests.resume.runs import build, digest
from tests.resume.steered import steered_envs

NUM_ENVS = 4
SIZES: dict[str, dict[str, Any]] = {
    "recurrent_ppo": {"batch_size": 10}, "recurrent_pqn": {"batch_size": 10}, "distillation": {"batch_size": 10},
    "recurrent_ppo_midway": {"batch_size": 6},
    "reinforce_episodes": {"collection_step_num_episodes": 4}, "ppo_episodes": {"collection_step_num_episodes": 4},
}  # fmt: skip
"""Fields of the trainer's params that shards can share out."""


def known_envs(num_envs: int, action_space: Any, seed: int | None = None) -> Any:
    """Return gymnasium's own envs for actions of this kind."""
    env = "Pendulum-v1" if isinstance(action_space, gym.spaces.Box) else "CartPole-v1"
    return rl.make_vec(env, num_envs, backend="sync", seed=seed)


class Cut(Exception):
    """Ends a run in the middle, as a kill would."""


def ends(cut_at: int | None) -> Callable[[int, int], None]:
    """Return a `training_fn` that raises before a training step."""
    steps = iter(range(1, 1000))

    def act(epoch: int, env_step: int) -> None:
        if next(steps) == cut_at:
            raise Cut

    return act


def make(
    name: str,
    num_shards: int | None = None,
    folder: Path | None = None,
    exact: bool = True,
    cut_at: int | None = None,
    compile: bool = False,
    max_epochs: int = 3,
    **more: Any,
) -> Any:
    """Return the trainer of a run; with a folder, it writes a log there and a checkpoint at every training step."""
    kind, is_known, _ = name.partition(" with known envs")
    parallel = rl.ParallelParams(num_shards=num_shards, exact=exact)
    logger = None
    if folder is not None:
        checkpoint = rl.CheckpointParams(folder / "checkpoints", every=1, keep_last=None)
        more = {"checkpoint": checkpoint} | more
        logger = rl.JSONLinesLogger(folder / "log.jsonl", training_interval=1, update_interval=1)
    envs = known_envs if is_known else steered_envs
    fields = {"num_envs": NUM_ENVS, "make_envs": envs, "training_fn": ends(cut_at), **SIZES.get(kind, {})}
    return build(
        kind, max_epochs, logger, runtime=rl.RuntimeParams(parallel=parallel, compile=compile), **fields | more
    )


def outcome(trainer: Any) -> dict[str, Any]:
    """Return a hash of all that each shard of this process may differ in, and the sum of all weights."""
    with torch.no_grad():
        weights = float(sum(p.double().abs().sum() for p in trainer.algorithm.policy.parameters()))
    trainers = [trainer, *trainer.replicas]
    for each in trainers:  # of which processes a run is, is all that it may differ in
        each.state.runtime = dataclasses.replace(each.state.runtime, parallel=None)
    return {"digests": [digest(each) for each in trainers], "weights": weights}


def main(folder: Path, runs: list[dict[str, Any]]) -> None:
    """Make all runs, and write what they come to."""
    found: list[Any] = []
    try:
        for fields in runs:
            own = folder / fields.pop("folder") if "folder" in fields else None
            trainer = make(folder=own, **fields)
            with suppress(Cut, RankLostError):  # a rank that is cut later may lose the other one first
                trainer.run()
            found.append(outcome(trainer))
    except BaseException as error:
        found.append(f"{type(error).__name__}: {error}")
        raise
    finally:
        (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
        time.sleep(0.5)  # for the other one's file, as torchrun ends it when this one fails


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
