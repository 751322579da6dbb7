"""A training of two ranks that faults befall: `torchrun training_ranks.py FOLDER NAME PLAN`, the plan as JSON.

Each process writes its end to `FOLDER/RANK-START.json`, where START counts the starts of torchrun.
"""

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import rltrainer as rl
from rltrainer.checkpoint import folder as checkpoint_folder
from rltrainer.checkpoint import store
from tests.resume.runs import build, digest
from tests.resume.steered import SteeredEnv

NUM_ENVS = 4


class Faults:
    """The faults of this process: `[name, rank, start, at]` each, where `at` counts the env steps of the process."""

    def __init__(self, folder: Path, faults: list[tuple[str, int, int, int]]) -> None:
        rank, start = (int(os.environ.get(name, "0")) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
        self.rank = rank
        self.due = {at: name for name, of_rank, of_start, at in faults if (of_rank, of_start) == (rank, start)}
        self.folder, self.file = folder, folder / f"{rank}-{start}.json"
        self.pid, self.launcher = os.getpid(), os.getppid()
        self.num_steps, self.num_open = -NUM_INITIAL if start == 0 else 0, 0

    def step(self) -> None:
        """Count an env step, and fail in it if that is due."""
        self.num_steps += 1
        if (name := self.due.get(self.num_steps)) is not None:
            (self.folder / "fault").touch()
            self.fail(name)

    def fail(self, name: str) -> None:
        match name:
            case "SIGKILL" | "SIGTERM" | "SIGINT":
                os.kill(self.pid, signal.Signals[name])
                time.sleep(0.01)  # of a worker
            case "SIGTERM to all":
                os.kill(self.launcher, signal.SIGTERM)
                time.sleep(0.5)
            case "raise":
                raise ValueError("the wheel is off")
            case "hang":
                time.sleep(60)
            case "full disk" | "space again":
                write = refuse_to_write if name == "full disk" else WRITE_MEMBER
                store.write_member = checkpoint_folder.write_member = write  # type: ignore[attr-defined]
            case _:
                raise ValueError(name)


NUM_INITIAL = 500
"""Env steps of a process before the first training step, for the statistics of observations."""
WRITE_MEMBER = checkpoint_folder.write_member


def refuse_to_write(*args: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class SlowHook(rl.TrainerHook):
    """Takes its time to shut down."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def setup(self, ctx: Any) -> None:
        self.faults.num_open += 1

    def shutdown(self, ctx: Any) -> None:
        time.sleep(0.5)  # torchrun sends SIGTERM meanwhile
        self.faults.num_open -= 1


class FaultyEnv(SteeredEnv):
    """Has its process fail in a step; slow to close on rank 1, which ends later."""

    def __init__(self, action_space: Any, faults: Faults) -> None:
        super().__init__(action_space)
        self.faults = faults
        faults.num_open += 1

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.faults.step()
        return super().step(action)

    def close(self) -> None:
        time.sleep(0.5 if self.faults.rank == 1 else 0.01)
        self.faults.num_open -= 1


def make_trainer(folder: Path, name: str, faults: Faults, parallel: rl.ParallelParams, plan: dict[str, Any]) -> Any:
    """Return a trainer that saves every third training step; faults are those of training envs."""

    has_faults = iter([True])  # the training envs, which are made first

    def make_envs(num_envs: int, action_space: Any, *args: Any) -> Any:
        make: Callable[[], Any] = partial(SteeredEnv, action_space)
        if next(has_faults, False):
            make = partial(FaultyEnv, action_space, faults)
        return rl.make_vec(make, num_envs, **plan.get("envs", {"backend": "sync"}))

    checkpoint = rl.CheckpointParams(
        folder / "checkpoints", every=3, keep_last=None, on_save_error=plan.get("on_save_error", "raise"),
        signals=plan.get("signals", True),
    )  # fmt: skip
    callbacks: dict[str, Any] = {}
    if (field := plan.get("callback")) is not None:
        callbacks[field] = partial(refuse, plan["rank"])
    logger = rl.JSONLinesLogger(folder / "log.jsonl", training_interval=1, update_interval=1)
    return build(
        name, 6, logger, num_envs=NUM_ENVS, make_envs=make_envs, checkpoint=checkpoint,
        runtime=rl.RuntimeParams(parallel=parallel), hooks=(SlowHook(faults),), **callbacks,
    )  # fmt: skip


def refuse(rank: int, *args: Any) -> None:
    """Raise in one rank, once the run has trained."""
    if os.environ["RANK"] == str(rank) and (len(args) == 1 or args[1] > 0):
        raise ValueError("the callback's")


def digests(trainer: Any) -> list[str]:
    """Return a hash over each of this process's shards."""
    return [digest(each) for each in (trainer, *trainer.replicas)]


def main(folder: Path, name: str, plan: dict[str, Any]) -> None:
    """Train, and write how that ended."""
    torch.set_num_threads(1)
    faults = Faults(folder, plan.get("faults", []))
    parallel = rl.ParallelParams(num_shards=2, exact=True, timeout=plan.get("timeout", 60.0))
    trainer = make_trainer(folder, name, faults, parallel, plan)
    end: dict[str, Any]
    try:
        trainer.run()
        end = {"digests": digests(trainer)}
    except BaseException as error:
        end = {"error": type(error).__name__, "text": str(error)}
        raise
    finally:
        end |= {"time": time.time(), "step": trainer.state.training_step, "num_open": faults.num_open}
        faults.file.write_text(json.dumps(end))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
