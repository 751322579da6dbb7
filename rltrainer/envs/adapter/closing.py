"""The end of a vector env, whoever made it."""

import logging
import threading
from typing import Any

import gymnasium as gym

from rltrainer.envs.workers.child import GRACE


def close_envs(envs: gym.vector.VectorEnv[Any, Any, Any]) -> None:
    """Close a vector env; never raises, and waits for gymnasium's worker processes five seconds at most.

    gymnasium itself waits for them without an end, and leaves them where one of them is dead.
    """
    inner = envs.unwrapped
    processes = inner.processes if isinstance(inner, gym.vector.AsyncVectorEnv) else []
    timer = threading.Timer(GRACE, _kill, (processes,))
    if processes:
        timer.start()
    try:
        envs.close()
    except (Exception, SystemExit) as error:
        logging.getLogger("rltrainer").warning("the vector env failed during close: %r", error)
    finally:
        timer.cancel()
        _kill(processes)
        for process in processes:
            process.join(1.0)
        if processes:
            inner.closed = True  # where it failed half-way, it would try again when it is collected


def _kill(processes: list[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
