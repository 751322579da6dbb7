"""One program in several processes of this machine that train together, as `torchrun` starts them."""

import atexit
import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from rltrainer.errors import ParamsError, RankLostError, RLTrainerError
from rltrainer.processes.channel import dumps, loads
from rltrainer.ranks.torch_ranks import STORE, torchrun_place
from rltrainer.tools.runs.processes import SECONDS_TO_SAVE, check_program
from rltrainer.validation.field_rules import PositiveInt, checked

T = TypeVar("T")
LOST = f"{RankLostError.__name__}: "
HANDLED = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
"""Signals whose handlers PyTorch's launcher replaces."""


def ranks_to_start(owner: str, num_ranks: int | None) -> int | None:
    """Return how many processes to start, None if this one trains itself; a `ParamsError` for no positive integer."""
    num_ranks, place = checked(owner, "num_ranks", num_ranks, PositiveInt | None), torchrun_place()
    if num_ranks is not None and place is not None and num_ranks != place[1]:
        rule = f"must be None, or {place[1]} as of torchrun, which started this process"
        raise ParamsError.about(owner, "num_ranks", rule, num_ranks)
    return num_ranks if place is None and num_ranks != 1 else None


def run_ranks(owner: str, num_ranks: int, function: Callable[[], T]) -> T:
    """Call a function in each of several new processes, and return the first one's result; only that one prints.

    Raises:
        ParamsError: the function cannot be sent to a process, or raised one.
        RLTrainerError: a rank failed; the text has its traceback.
    """
    # Only here, as they take half a second.
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    check_program(owner, function)
    with tempfile.TemporaryDirectory() as folder, _kept_settings():
        # Files, not ports: PyTorch unpickles what it finds at its launcher's port, and listens there on all addresses.
        os.environ |= {STORE: os.path.join(folder, "store"), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        for name in {"lo", "lo0"} & {name for _, name in socket.if_nameindex()}:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=num_ranks, max_restarts=0, run_id=uuid.uuid4().hex,
            rdzv_backend="c10d", rdzv_endpoint=os.path.join(folder, "launcher"), rdzv_configs={"store_type": "file"},
            local_addr="127.0.0.1", logs_specs=DefaultLogsSpecs(folder),
        )  # fmt: skip
        try:
            results = elastic_launch(config, _call_in_rank)(dumps(function), sys.orig_argv, folder)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            said: Any = failure.message
            text = f"rank {rank} of {num_ranks} failed:\n"
            if not isinstance(said, dict):  # its process ended without a message
                text += said if failure.exitcode < 0 else f"its process exited with code {failure.exitcode}"
            elif said["message"].startswith(LOST):  # because of another rank, which the rest of the message names
                text = said["message"].removeprefix(LOST)
            else:
                text += said["extraInfo"]["py_callstack"]
            raise RLTrainerError(f"{owner}: {text}") from None
        except SignalException as error:  # the ranks have ended by it
            ends_by: BaseException = SystemExit(128 + error.sigval)
            raise (KeyboardInterrupt if error.sigval == signal.SIGINT else ends_by) from None
    if isinstance(found := loads(results[0]), ParamsError):
        raise found
    return cast(T, found)


def _call_in_rank(pickled: bytes, command: list[str], folder: str) -> bytes:
    launcher: Any = multiprocessing.parent_process()
    atexit.register(_remove_after, launcher, folder)
    threading.Thread(target=_end_after_launcher, args=(launcher,), daemon=True).start()
    sys.orig_argv = command  # of the program that started the ranks: runs record it as theirs
    if hasattr(os, "setsid"):  # Ctrl-C reaches the launcher, which passes it on; a second one would end a rank at once
        os.setsid()
    with contextlib.ExitStack() as opened:
        if os.environ["RANK"] != "0":
            opened.enter_context(contextlib.redirect_stdout(opened.enter_context(open(os.devnull, "w"))))
        try:
            return dumps(loads(pickled)())
        except ParamsError as error:  # a mistake of the user's, not a fault of the rank
            return dumps(error)
        except KeyboardInterrupt:
            launcher.join(1.0)  # the system sends it once the first thread of a killed launcher has ended
            raise


def _end_after_launcher(launcher: Any) -> None:
    launcher.join()
    time.sleep(SECONDS_TO_SAVE)  # PyTorch has the system send a SIGINT, at which a run saves and ends
    os._exit(1)


def _remove_after(launcher: Any, folder: str) -> None:
    if not launcher.is_alive():  # it was killed
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the system may send several
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _kept_settings() -> Iterator[None]:
    """Give ranks one thread each, as `torchrun` does, and undo what is done to this process to start them."""
    numbers = [getattr(signal, name) for name in HANDLED if hasattr(signal, name)]
    handlers, before = [signal.getsignal(number) for number in numbers], dict(os.environ)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        yield
    finally:
        for name in os.environ.keys() - before:
            del os.environ[name]
        os.environ.update(before)
        if threading.current_thread() is threading.main_thread():
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)
