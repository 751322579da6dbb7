"""The side of a worker process: it makes an object, and calls its methods as its parent says."""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, Protocol, Self

import numpy as np
import torch

from rltrainer.errors import RLTrainerError
from rltrainer.files.atomic_write import process_exists
from rltrainer.processes.channel import DONE, FAILED, REPORT, RESULT, STEP, Channel, dumps, loads
from rltrainer.processes.shared_arrays import SharedArrays

STARTING, IDLE = -2, -1
"""Pulse values: importing (no time limit), and idle between two calls."""
PULSE_LAYOUT = np.dtype((np.int64, (1,)))
SECONDS_TO_CLOSE = 2.0
"""Time for the program to close what it holds when the parent is gone."""
FOR_THE_PARENT = [signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
"""Signals that `timeout`, schedulers and service managers send to all processes of a run."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text: not every exception survives a pickle."""

    type_name: str
    message: str
    traceback: str
    is_ours: bool  # of `rltrainer.errors`: its message says everything

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the failure of an exception."""
        try:
            message = str(error)
        except Exception:
            message = "(the exception's __str__ failed)"
        trace = "".join(traceback.format_exception(error))
        return cls(type(error).__name__, message, trace, isinstance(error, RLTrainerError))


class Link:
    """A program's connection to the parent; the program changes `pulse` [1] as long as it makes progress."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._lock, self.receive_file = channel, threading.Lock(), channel.receive_file
        self.pulse = SharedArrays(PULSE_LAYOUT, channel.receive_file()).arrays

    def load(self, data: bytes) -> Any:
        """Return what was pickled."""
        self.pulse[0] = STARTING  # the imports that this makes may take any time
        value = loads(data)
        self.pulse[0] = IDLE
        return value

    def report(self, value: Any) -> None:
        """Send a value before the result; nothing, if the parent is gone."""
        with self._lock, contextlib.suppress(OSError):
            self._channel.send(REPORT, dumps(value))

    def ask(self, question: Any) -> Any:
        """Report a question, and return the parent's answer; None if the parent has ended the connection."""
        self.report(question)
        try:
            return loads(self._channel.receive_data())
        except (EOFError, OSError):
            return None


class Program(Protocol):
    """The object of a worker process; made as `program(link, *arguments)`, it has a method for each call."""

    def close(self) -> None:
        """Close what it holds; never raises."""


def run_program(
    end: socket.socket,
    program: Callable[..., Program],
    arguments: tuple[Any, ...],
    spins: bool,
    seconds_to_save: float | None,
    command: list[str],
) -> None:
    """Serve the parent until it ends the connection or is gone; see `Worker` for the arguments."""
    sys.orig_argv = command  # of the parent's program: runs record it as theirs
    # Ctrl-C reaches every process of the terminal: the parent decides what becomes of it. A forked worker would also
    # inherit the parent's handlers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if seconds_to_save is None:
        for number in FOR_THE_PARENT:
            signal.signal(number, _leave_to_parent)
    else:  # signals to the parent's group reach it once, through the parent: a second one would end it unsaved
        os.setsid()
        signal.signal(signal.SIGTERM, _exit)
    threading.Thread(target=_end_with_parent, args=(seconds_to_save,), daemon=True).start()
    torch.set_num_threads(1)
    # multiprocessing forbids a daemon to have children, and an env may have some; all of them end with their parent.
    multiprocessing.current_process().daemon = False
    channel = Channel(end, spins)
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        link = Link(channel)
        served = program(link, *arguments)
        link.pulse[0] = IDLE
        try:
            while kind := channel.receive_kind():
                name, values = ("step", ()) if kind == STEP else loads(channel.receive_data())
                channel.send(*answer(served, link, name, values))
        finally:
            served.close()


def answer(served: Program, link: Any, name: str, arguments: tuple[Any, ...]) -> tuple[bytes] | tuple[bytes, bytes]:
    """Call a method, and return the message with its result or its exception."""
    try:
        result = getattr(served, name)(*arguments)
    except BaseException as error:  # SystemExit too; the pulse stays where it was, in the env that failed
        return FAILED, dumps(Failure.of(error))
    link.pulse[0] = IDLE
    if result is None:
        return (DONE,)
    try:
        return RESULT, dumps(result)
    except Exception as error:
        text = f"the result cannot be sent to another process: {error}"
        return FAILED, dumps(Failure(type(error).__name__, text, "", is_ours=False))


def _leave_to_parent(number: int, frame: FrameType | None) -> None:
    """Do nothing at a signal that the parent handles, and needs its workers to finish a step; else end by it."""
    try:
        with open(f"/proc/{_parent().pid}/status") as file:
            handled = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):  # not Linux, or no parent
        handled = 0
    # SigCgt is a mask: bit n - 1 is set if the process handles signal n.
    if not handled >> (number - 1) & 1:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _end_with_parent(seconds_to_save: float | None) -> None:
    """End this process when its parent is gone, also in the middle of an env's step."""
    # A forked sibling may hold the parent's end of our socket open, so that no end of file says this.
    parent = _parent()
    is_child = os.getppid() == parent.pid  # else of the fork server, which a signal to all processes may end
    while parent.is_alive() and (os.getppid() == parent.pid if is_child else process_exists(parent.pid)):
        parent.join(1.0)
    if seconds_to_save is not None:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_CLOSE if seconds_to_save is None else seconds_to_save)
    os._exit(1)


def _parent() -> Any:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a child"
    return parent
