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
from typing import Any, Protocol

import torch

from rltrainer.envs.workers.by_value import dumps
from rltrainer.envs.workers.shared_arrays import map_pulse
from rltrainer.envs.workers.signals import Inbox
from rltrainer.envs.workers.worker_envs import INFOS, QUIT, STEP, Failure

DONE, PAYLOAD = b".", b"+"


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
    # inherit the parent's handler of SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(os.getppid(), folder), daemon=True).start()
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


def _packed(result: Any, failures: Sequence[Failure], holder: Server) -> bytes:
    try:
        return dumps((result, failures))
    except Exception as error:
        return dumps((None, [holder.unsendable(error)]))


def _end_with_parent(ppid: int, folder: str | None) -> None:
    """End this process when its parent is gone, also in the middle of an env's step.

    A forked sibling may hold the parent's end of our pipes open, so that no end of file tells us.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a child"
    while parent.is_alive() and os.getppid() == ppid:
        parent.join(1.0)
    if folder is not None and not parent.is_alive():
        shutil.rmtree(folder, ignore_errors=True)
    time.sleep(2.0)  # for `run_worker` to close the envs
    os._exit(1)
