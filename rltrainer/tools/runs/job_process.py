"""The program of a process that does one job for its parent: it tells how far it is, may ask, and returns a result.

It has a session of its own, so that Ctrl-C in a terminal reaches the parent only, which then ends it once, by SIGTERM:
a run with checkpoints is saved.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import FrameType
from typing import Any, Literal, NamedTuple, NoReturn

import torch

from rltrainer.envs.workers.by_value import dumps, loads
from rltrainer.trainers import Trainer

TICK = 0.5
"""Seconds between two looks at how far a run is."""
SECONDS_TO_END = 60.0
"""For what is saved when the parent is gone."""


class Report(NamedTuple):
    """A word of a process: its progress, in [0, 1] with its best score; a question; its result; or why it has none."""

    kind: Literal["progress", "question", "done", "failed", "no travel"]
    value: Any


class Parent:
    """The process that started this one, as its job sees it.

    Args:
        pipe: the way there.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()  # the job and who reports on it may not write at once
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._is_over = False

    def tell(self, report: bytes) -> None:
        """Send a report; nothing, if nobody is there any more."""
        with self._lock, contextlib.suppress(OSError):
            self._pipe.send_bytes(report)

    def ask(self, question: Any) -> Any:
        """Return the answer to a question; None if nobody is there to answer."""
        if self._is_over:
            return None
        self.tell(dumps(Report("question", question)))
        return self._answers.get()

    def run(self, trainer: Trainer[Any, Any]) -> Any:
        """Run a trainer, and report how far it is."""
        is_over = threading.Event()
        looks = threading.Thread(target=partial(self._report, trainer, is_over), daemon=True)
        looks.start()
        try:
            return trainer.run()
        finally:
            is_over.set()
            looks.join()

    def listen(self) -> None:
        """Take in answers; end this process, saved, when the parent is gone."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                self._take(loads(self._pipe.recv_bytes()))
        self._take(OVER)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SECONDS_TO_END)
        os._exit(1)

    def _take(self, answer: Any) -> None:
        self._is_over = self._is_over or answer is OVER
        self._answers.put(answer)

    def _report(self, trainer: Trainer[Any, Any], is_over: threading.Event) -> None:
        while not is_over.wait(TICK):
            state = trainer.state
            share = trainer.params.share_done(*state.num_epochs_and_steps(trainer.step_unit))
            self.tell(dumps(Report("progress", (share, state.best.score))))


Job = Callable[[Parent], Any]
OVER = None
"""The parent's word that it ends all."""


def run_job(pipe: Connection, payload: bytes, command: list[str]) -> None:
    """Do a job that was sent here, and report; `command` began the program, and runs here tell it as theirs."""
    sys.orig_argv = command
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGTERM, _end)
    parent = Parent(pipe)
    threading.Thread(target=parent.listen, daemon=True).start()
    torch.set_num_threads(1)
    try:
        job: Job = loads(payload)
    except Exception:
        parent.tell(dumps(Report("no travel", traceback.format_exc())))
        return
    try:
        answer = dumps(Report("done", job(parent)))
    except BaseException:  # of a signal, too
        answer = dumps(Report("failed", traceback.format_exc()))
    parent.tell(answer)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
