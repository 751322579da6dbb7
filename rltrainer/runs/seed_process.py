"""The program of a process that runs one seed: it makes a trainer, runs it, and tells its parent how far it is.

It has a session of its own, so that Ctrl-C in a terminal reaches the parent only, which then ends it once, by SIGTERM:
a run with checkpoints is saved.
"""

import contextlib
import dataclasses
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Literal, NamedTuple, NoReturn

import torch

from rltrainer.envs.workers.by_value import dumps, loads
from rltrainer.seeding import seed as seed_everything
from rltrainer.trainers import Trainer

TICK = 0.5
"""Seconds between two looks at how far a run is."""
SECONDS_TO_END = 60.0
"""For what is saved when the parent is gone."""


class Report(NamedTuple):
    """A word of a process: how far it is, in [0, 1] with its best score; its result; or why there is none."""

    kind: Literal["progress", "done", "failed", "no travel"]
    value: Any


def run_seed(pipe: Connection, make: bytes, seed: int) -> None:
    """Run a seed, and report."""
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    torch.set_num_threads(1)
    try:
        function: Callable[[int], Any] = loads(make)
    except Exception:
        pipe.send_bytes(dumps(Report("no travel", traceback.format_exc())))
        return
    try:
        seed_everything(seed)
        made = function(seed)
        result = _run(made, pipe) if isinstance(made, Trainer) else made
        answer = dumps(Report("done", result))
    except BaseException:  # of a signal, too
        answer = dumps(Report("failed", traceback.format_exc()))
    pipe.send_bytes(answer)


def _run(trainer: Trainer[Any, Any], pipe: Connection) -> Any:
    trainer.params = dataclasses.replace(trainer.params, show_progress=False, verbose=False)
    is_over = threading.Event()
    looks = threading.Thread(target=partial(_report, trainer, pipe, is_over), daemon=True)
    looks.start()
    try:
        return trainer.run()
    finally:
        is_over.set()
        looks.join()  # two may not write at once


def _report(trainer: Trainer[Any, Any], pipe: Connection, is_over: threading.Event) -> None:
    while not is_over.wait(TICK):
        state = trainer.state
        share = trainer.params.share_done(*state.num_epochs_and_steps(trainer.step_unit))
        pipe.send_bytes(dumps(Report("progress", (share, state.best.score))))


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _end_with_parent(pipe: Connection) -> None:
    with contextlib.suppress(OSError, EOFError):
        pipe.recv_bytes()  # nothing ever comes but the end
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_END)
    os._exit(1)
