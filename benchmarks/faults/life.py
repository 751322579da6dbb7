"""One life of a run: a process that trains until something ends it, and notes how far it has come."""

import builtins
import errno
import faulthandler
import hashlib
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import rltrainer as rl
from benchmarks.faults.legs import LEGS, EnvTrouble, Setting, next_obs
from tests.resume.runs import digest

LONGEST = 90
"""Seconds after which a life tells where it hangs; it is killed a little later. One to the end may take longer."""
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


@dataclass(frozen=True)
class DiskTrouble:
    """A fault of the file system in the n-th call that opens, flushes, makes or renames something in a folder.

    Args:
        at: the how-manieth call.
        code: what the system says; None kills the process instead.
    """

    at: int
    code: int | None

    def arm(self, folder: str, note: Callable[[str], None]) -> None:
        """Let calls count from here; a strike is noted."""
        count = 0

        def counted(name: str, function: Any, is_ours: Callable[..., bool]) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += is_ours(*args)
                if count != self.at or not is_ours(*args):
                    return function(*args, **kwargs)
                note(f"strike {name}")
                if self.code is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(self.code, os.strerror(self.code or 0))

            return call

        def is_within(path: Any, *rest: Any) -> bool:
            return isinstance(path, str | Path) and str(path).startswith(folder)

        def writes(path: Any, mode: str = "r", *rest: Any) -> bool:
            return is_within(path) and mode[:1] in "wxa"

        os.fsync = counted("fsync", os.fsync, lambda file: True)  # type: ignore[assignment]  # on purpose
        os.replace = counted("replace", os.replace, is_within)  # type: ignore[assignment]  # on purpose

        def is_new(path: Any, *rest: Any) -> bool:  # that one is there is no failure
            return is_within(path) and not os.path.isdir(path)

        os.mkdir = counted("mkdir", os.mkdir, is_new)  # type: ignore[assignment]  # on purpose
        builtins.open = counted("open", builtins.open, writes)  # type: ignore[assignment]  # on purpose


class FaultyHook(rl.TrainerHook):
    """Reads, and raises at the end of a training step."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def post_steps(self, ctx: rl.TrainerContext) -> None:
        self.count += 1
        if self.count == self.at:
            raise RuntimeError("the hook is tired")


@dataclass(frozen=True)
class Plan:
    """What a life is told.

    Args:
        leg: a key of `LEGS`.
        trouble, test_trouble, disk_trouble, hook_at: what strikes inside it.
        checkpoint: fields of `CheckpointParams`; None saves nothing.
        limit: training steps after which it ends itself by SIGTERM.
        longest: see `LONGEST`.
    """

    leg: str
    trouble: EnvTrouble | None = None
    test_trouble: EnvTrouble | None = None
    disk_trouble: DiskTrouble | None = None
    hook_at: int | None = None
    checkpoint: dict[str, Any] | None = field(default_factory=dict)
    limit: int = 25
    longest: float = LONGEST

    def live(self, folder: Path, saved: Path, journal: Path, errors: Path, max_epochs: int) -> None:
        """Run from where it can to an end; whatever is raised leaves this process as it would leave a program's."""
        os.setsid()  # what belongs to this life can be found, also when it is over
        torch.set_num_threads(1)
        for stream, path in ((1, os.devnull), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        faulthandler.dump_traceback_later(self.longest)
        notes = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def note(text: str) -> None:
            os.write(notes, f"{text}\n".encode())

        def begin_step(epoch: int, env_step: int) -> None:
            nonlocal num_steps
            state, num_steps = trainer.state, num_steps + 1
            note(f"step {state.training_step + 1} {getattr(trainer, trainer.step_unit)} {weights(trainer)}")
            if num_steps == 2:  # what led to where the envs are is repeated in the first
                for trouble in (self.trouble, self.test_trouble):
                    if trouble is not None:
                        trouble.arm()
            if num_steps > self.limit:
                note(f"stop {num_restarts(trainer)}")
                os.kill(os.getpid(), signal.SIGTERM)

        num_steps = 0
        callbacks = {"training_fn": begin_step, "test_fn": lambda epoch, env_step: note("test")}
        hooks = () if self.hook_at is None else (FaultyHook(self.hook_at),)
        trainer = LEGS[self.leg](
            Setting(
                str(folder), str(saved), max_epochs, self.trouble, self.test_trouble, hooks, self.checkpoint, callbacks
            )
        )
        if self.disk_trouble is not None:
            self.disk_trouble.arm(str(saved), note)
        trainer.run()
        # A life that was over before its hook could raise has a hook that others have not.
        state = digest(trainer, left_out=("logger", "hooks"))
        end = state, rows(trainer.params.logger.path), num_restarts(trainer), num_wrong(trainer)
        note("done " + " ".join(map(str, end)))


def weights(trainer: Any) -> str:
    """Return a short hash of the policy and of the algorithm's random numbers, to find where a run leaves its way."""
    hasher = hashlib.blake2b(digest_size=8)
    for _, value in sorted(trainer.algorithm.policy.state_dict().items()):
        hasher.update(value.numpy().tobytes())
    return hasher.hexdigest()


def num_restarts(trainer: Any) -> int:
    """Return how often a training env was made anew."""
    collector = getattr(trainer.params, "training_collector", None)
    return getattr(getattr(collector, "envs", None), "num_restarts", 0)


def num_wrong(trainer: Any) -> int:
    """Return how many transitions in the buffer of training are not what the env does."""
    collector = getattr(trainer.params, "training_collector", None)
    if collector is None or not isinstance(collector.buffer, rl.ReplayBuffer):
        return 0
    found = collector.buffer.sample(2000)
    expected = next_obs(found.obs.numpy(), found.action.numpy().sum(-1))
    return int((found.next_obs.numpy() != expected).any(-1).sum())


def rows(path: Path) -> str:
    """Return a hash of the rows of a log, but for its params and what is measured in seconds."""
    hasher = hashlib.sha256()
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["kind"] != "params":
            kept = {name: value for name, value in row.items() if "per_second" not in name}
            hasher.update(json.dumps(kept, sort_keys=True).encode())
    return hasher.hexdigest()
