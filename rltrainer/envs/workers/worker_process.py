"""The program of a worker process: it does with its envs what the parent says.

The parent sends a command of one byte through a socket, and the arguments of all but STEP and QUIT through a pipe. The
answer is DONE, INFOS (DONE, with infos in shared memory), or PAYLOAD and then (result, failures) through the pipe.
Observations, actions, rewards and flags are in shared memory.
"""

import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from rltrainer.envs.backends.env_group import Env
from rltrainer.envs.workers.signals import Inbox
from rltrainer.envs.workers.worker_envs import INFOS, QUIT, STEP, Failure, WorkerEnvs

DONE, PAYLOAD = b".", b"+"


def run_worker(
    signals: socket.socket, pipe: Connection, factories: Sequence[Callable[[], Env]], first: int, stays_awake: bool
) -> None:
    """Serve the parent, as said above, until it says QUIT or is gone; the further arguments are those of `Worker`."""
    # Ctrl-C reaches every process of the terminal: the parent decides what becomes of it. A forked worker would also
    # inherit the parent's handler of SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    envs = WorkerEnvs(factories, first, lambda: socket.recv_fds(signals, 1, 1)[1][0])
    inbox = Inbox(signals, stays_awake)
    try:
        while (command := inbox.receive()) not in (b"", QUIT):
            result, failures = envs.answer(command, *(() if command == STEP else pipe.recv()))
            if not failures and (result is None or result == INFOS):
                signals.send(result or DONE)
            else:
                data = _packed(result, failures, first)
                signals.send(PAYLOAD)
                pipe.send_bytes(data)
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    finally:
        envs.close()


def _packed(result: Any, failures: Sequence[Failure], first: int) -> Any:
    try:
        return ForkingPickler.dumps((result, failures))
    except Exception as error:
        text = (
            f"env {first}, or another env of its worker process, returned something that cannot be sent from process "
            f"to process, in its info, attribute or frame: {type(error).__name__}: {error}"
        )
        return ForkingPickler.dumps((None, [Failure(first, "EnvError", text, "", True)]))


def _end_with_parent(ppid: int) -> None:
    """End this process when its parent is gone, also in the middle of an env's step.

    A forked sibling may hold the parent's end of our pipes open, so that no end of file tells us.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is a child"
    while parent.is_alive() and os.getppid() == ppid:
        parent.join(1.0)
    time.sleep(2.0)  # for `run_worker` to close the envs
    os._exit(1)
