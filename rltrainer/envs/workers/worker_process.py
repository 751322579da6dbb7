"""The program of a worker process: it does what the parent says with what it holds there, envs or a collector.

First it is given its pulse, a number in shared memory. Then the parent sends a command of one byte through a socket,
and the arguments of all but STEP and QUIT through a pipe. The answer is DONE, INFOS (DONE, with infos in shared
memory), or PAYLOAD and then (result, failures) through the pipe. Observations, actions, rewards and flags of a vector
env's workers are in shared memory.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Protocol

import torch

from rltrainer.envs.workers.by_value import dumps
from rltrainer.envs.workers.shared_arrays import map_pulse
from rltrainer.envs.workers.signals import Inbox
from rltrainer.envs.workers.worker_envs import INFOS, QUIT, STEP, Failure

DONE, PAYLOAD = b".", b"+"
FOR_THE_PARENT = [signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else [])]
"""Signals that `timeout`, schedulers and service managers send to all processes of a run."""


class Server(Protocol):
    """The part of a worker process that answers: made with its `Child`'s arguments, `pulse` and `receive_file`.

    The pulse is an array of one integer, which it changes while it gets on.
    """

    def answer(self, command: bytes, *args: Any) -> tuple[Any, Sequence[Failure]]:
        """Do what the parent says; return the result and what was raised; raises nothing."""

    def unsendable(self, error: Exception) -> Failure:
        """Return what the parent is told where an answer cannot be pickled."""

    def close(self) -> None:
        """Close the envs; never raises."""


def run_worker(
    signals: socket.socket,
    pipe: Connection,
    server: Callable[..., Server],
    arguments: Any,
    stays_awake: bool,
    folder: str | None,
) -> None:
    """Serve the parent, as said above, until it says QUIT or is gone.

    Args:
        signals, pipe: to the parent.
        server, arguments, stays_awake: those of `Child`.
        folder: the parent's, which it removes at its end, but not where it is killed.
    """
    # Ctrl-C reaches every process of the terminal: the parent decides what becomes of it. A forked worker would also
    # inherit the parent's handlers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in FOR_THE_PARENT:
        signal.signal(number, _leave_to_parent)
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    torch.set_num_threads(1)
    inbox = Inbox(signals, stays_awake)

    def receive_file() -> int:
        """Return the descriptor that the parent sent with a command."""
        _, files, _, _ = socket.recv_fds(signals, 1, 1)
        if not files:
            raise EOFError
        return files[0]

    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone
        pulse = map_pulse(file := receive_file())
        os.close(file)
        holder = server(*arguments, pulse=pulse, receive_file=receive_file)
        try:
            while (command := inbox.receive()) not in (b"", QUIT):
                result, failures = holder.answer(command, *(() if command == STEP else pipe.recv()))
                if not failures and (result is None or result == INFOS):
                    signals.send(result or DONE)
                else:
                    data = _packed(result, failures, holder)
                    signals.send(PAYLOAD)
                    pipe.send_bytes(data)
        finally:
            holder.close()


def _leave_to_parent(number: int, frame: FrameType | None) -> None:
    """Do nothing at a signal that the parent handles, and needs its workers to finish a step; else end by it."""
    try:
        with open(f"/proc/{_parent().pid}/status") as file:
            handled = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):  # not Linux, or no parent
        handled = 0
    if not handled >> (number - 1) & 1:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _packed(result: Any, failures: Sequence[Failure], holder: Server) -> bytes:
    try:
        return dumps((result, failures))
    except Exception as error:
        return dumps((None, [holder.unsendable(error)]))


def _end_with_parent(folder: str | None) -> None:
    """End this process when its parent is gone, also in the middle of an env's step."""
    parent = _parent()
    is_child = os.getppid() == parent.pid  # or of the fork server, which a signal to all processes may end
    while parent.is_alive() and (os.getppid() == parent.pid if is_child else _exists(parent.pid)):
        parent.join(1.0)
    if folder is not None and not parent.is_alive():
        shutil.rmtree(folder, ignore_errors=True)
    time.sleep(2.0)  # for `run_worker` to close the envs
    os._exit(1)


def _parent() -> Any:
    """Return the process that started this one; its `is_alive` is not enough.

    A forked sibling may hold the parent's end of our pipes open, so that no end of file tells us.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a child"
    return parent


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
