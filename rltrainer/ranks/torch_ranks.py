"""Ranks that are processes, started by `torchrun` or by a launcher that sets the same variables.

A rank that fails, dies or hangs is named on all others: the first one that knows the cause writes it to the store that
all processes share, and closes its connections, which ends the collective operations of the others.
"""

import atexit
import json
import os
import platform
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import Tensor
from torch.nn.functional import pad

from rltrainer.errors import ParamsError, RankLostError, RLTrainerError
from rltrainer.files.atomic_write import host_id, process_exists
from rltrainer.processes.worker import num_cores
from rltrainer.ranks.board import Board
from rltrainer.ranks.ranks import Alone, Ranks

T = TypeVar("T")
dist: Any = torch.distributed  # not all names of its documentation are typed, and some builds have none
SECONDS_TO_JOIN = 120.0
"""Time for all processes to be started: their imports may be slow."""
SECONDS_TO_ANSWER = 5.0
"""Time for the process that holds the store to answer, beyond the limit of a call. PyTorch waits for it for ever."""
SECONDS_TO_NAME = 1.0
"""Time for ranks to agree on the one that is lost."""
SECONDS_FOR_OTHERS = 2.0
"""Time for ranks on a busy machine to say that they have noticed a failure, while more than one is silent."""
SECONDS_TO_END = 20.0
"""Time for a rank that fails to print its error; `torchrun` kills the others after 30 seconds."""

STORE = "RLTRAINER_STORE"
"""The variable with the file in which ranks of one machine meet, so that no port is open; unset under `torchrun`."""
ENDED = "ended by SIGTERM"


def torchrun_place() -> tuple[int, int] | None:
    """Return the rank of this process and the number of processes, if a launcher has started more than one.

    From then on "cuda" is the GPU of its local rank.

    Raises:
        ParamsError: the variables that launchers set contradict each other.
    """
    world = _number("WORLD_SIZE", "an integer of at least 1", lambda n: n >= 1) if "WORLD_SIZE" in os.environ else 1
    if world == 1:
        return None
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            hint = "torchrun sets all of these; without it, unset WORLD_SIZE."
            raise ParamsError.about("environment", name, f"must be set beside WORLD_SIZE ({world})", None, hint)
    _own_gpu()
    return _number("RANK", f"an integer in [0, {world})", lambda n: n < world), world


@cache
def _own_gpu() -> str | None:
    """Take the GPU of the local rank, and return its identity; None if there are no GPUs."""
    if not torch.cuda.is_available():
        return None
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def _number(name: str, rule: str, is_valid: Callable[[int], bool]) -> int:
    text = os.environ[name]
    if not text.isdecimal() or not is_valid(int(text)):
        raise ParamsError.about("environment", name, f"must be {rule}", text, "torchrun sets it.")
    return int(text)


def process_ranks(timeout: float = 60.0, is_exact: bool = False) -> Ranks:
    """Return the place of this process among the processes that a launcher has started; `Alone` without one.

    Args:
        timeout: seconds after which a rank that does not come to a collective operation is taken for lost.
        is_exact: see `Ranks`.
    """
    place = torchrun_place()
    if place is None:
        return Alone(is_exact=is_exact)
    return TorchRanks(_answered(SECONDS_TO_JOIN, _team, *place), timeout, is_exact)


def _answered(limit: float, call: Callable[..., T], *args: Any) -> T:
    """Return the result of a call to the store, or raise a `RankLostError` if no answer comes."""
    future = Future[T]()

    def work() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    # The thread of a call without an answer is left behind: nothing ends it but the end of the process.
    threading.Thread(target=work, daemon=True).start()
    try:
        return future.result(limit + SECONDS_TO_ANSWER)
    except TimeoutError:  # not of PyTorch: its errors are of other classes
        raise RankLostError(_store_text("does not answer")) from None


def _await_store() -> None:
    """Wait until a process listens at the store's address, and answers as a store does."""
    address, until = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), time.monotonic() + SECONDS_TO_JOIN
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(address, SECONDS_TO_ANSWER):
            _answered(0.0, partial(dist.TCPStore, *address, is_master=False, wait_for_workers=False))
            return
        time.sleep(0.1)


def _store_text(fault: str) -> str:
    store = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    return f"the process at {store}, through which all ranks are connected, {fault}"


@dataclass
class Connections:
    """The connections of a team with one time limit."""

    group: Any
    """The process group of PyTorch; None once a rank has failed."""
    notes: Any
    """The store of the ranks' notes on how these connections ended; the key "cause" has the first one's."""
    board: Board | None
    """Memory for exchanges, if all ranks are on one machine with a core for each."""

    def close(self) -> None:
        """Close this rank's ends, at which collective operations of the others end."""
        if self.group is not None:
            group, self.group = self.group, None
            dist.destroy_process_group(group)


class Team:
    """The processes of a program: who they are, the store that they share, and their connections.

    Raises:
        RLTrainerError: this PyTorch has no `torch.distributed`.
    """

    def __init__(self, rank: int, world: int) -> None:
        if not dist.is_available():
            text = f"this PyTorch ({torch.__version__}) is built without torch.distributed"
            raise RLTrainerError(f"{text}, which a run of {world} processes needs")
        self.rank, self.world = rank, world
        limit = timedelta(seconds=SECONDS_TO_JOIN)
        path = os.environ.get(STORE)
        if rank and not path:
            _await_store()
        store = dist.FileStore(path, world) if path else next(dist.rendezvous("env://", timeout=limit))[0]
        # torchrun's store outlives the processes that it starts again.
        run, start = (os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT"))
        self._store = dist.PrefixStore(f"rltrainer {run} {start}", store)
        self._store.set_timeout(limit)
        if not dist.is_initialized():
            own = dist.PrefixStore("world", self._store)
            dist.init_process_group("gloo", store=own, rank=rank, world_size=world, timeout=limit)
            atexit.register(self._leave)
        self._host, gpu = host_id(), _own_gpu()
        self._store.set(f"member {rank}", json.dumps([os.getpid(), platform.node(), self._host, gpu]))
        self._members = [json.loads(self._store.get(f"member {each}")) for each in range(world)]
        # NCCL wants a GPU for each process; gloo moves tensors of any device.
        is_nccl = len({gpu for *_, gpu in self._members} - {None}) == world and dist.is_nccl_available()
        self._backend = "cpu:gloo,cuda:nccl" if is_nccl else "gloo"
        self._connections: dict[float, Connections] = {}
        self._num_made = 0

    def connect(self, timeout: float) -> Connections:
        """Return connections with a time limit in seconds: the ones that are there, or new ones after a failure."""
        there = self._connections.get(timeout)
        if there is None or there.group is None:
            self._num_made += 1
            group = dist.new_group(timeout=timedelta(seconds=timeout), backend=self._backend)
            notes = dist.PrefixStore(f"connections {self._num_made}", self._store)
            self._connections[timeout] = there = Connections(group, notes, self._new_board(notes, timeout))
        return there

    def _new_board(self, notes: Any, timeout: float) -> Board | None:
        """Return memory for exchanges if every rank has opened it, else None on all."""

        def check(waited: float) -> None:
            if waited > timeout or _answered(timeout, notes.check, ["cause"]) or self.dead():
                raise RuntimeError("a rank does not come to an exchange")

        if any(host != self._host for _, _, host, _ in self._members):
            return None
        number, path = b"0", None
        if self.rank > 0:  # only the number of a descriptor is taken from the store, which others may reach
            number = notes.get("board 0")
            path = f"/proc/{self._members[0][0]}/fd/{number.decode(errors='replace')}"
        is_useful = number.isdigit() and self.world <= num_cores()
        board = Board.opened(self.rank, self.world, path, check) if is_useful else None
        notes.set(f"board {self.rank}", "" if board is None else os.path.basename(board.path))
        are_open = [notes.get(f"board {each}") != b"" for each in range(self.world)]
        return board if all(are_open) else None

    def text(self, ranks: list[int], fault: str) -> str:
        """Return the words for ranks that cannot speak for themselves."""
        names = ((rank, *self._members[rank][:2]) for rank in ranks)
        return "; ".join(f"rank {rank} of {self.world} (pid {pid} on host {node}) {fault}" for rank, pid, node in names)

    def dead(self) -> list[int]:
        """Return the ranks on this host with a process that has ended."""
        return [rank for rank, (pid, _, host, _) in enumerate(self._members) if host == self._host and _has_ended(pid)]

    def _leave(self) -> None:
        # At exit. If several ranks end, torchrun would kill the later ones, and their exit status would be lost.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._connections.clear()  # PyTorch would warn of groups that are left
        with suppress(Exception):  # of a user who has done so
            dist.destroy_process_group()


_team = cache(Team)


def _has_ended(pid: int) -> bool:
    with suppress(OSError):  # not Linux, or no such process
        # "pid (name) state ...": one that its parent has not asked for is a zombie.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    return not process_exists(pid)


class TorchRanks(Ranks):
    """A rank that is a process; `process_ranks` makes it."""

    def __init__(self, team: Team, timeout: float, is_exact: bool = False) -> None:
        super().__init__(team.rank, team.world, is_exact)
        self._team, self._timeout = team, timeout
        self._connections = _answered(timeout, team.connect, timeout)
        self._failed: float | None = None  # when an exception has left `reporting`
        self._outer: BaseException | None = None  # that is being handled around it

    def _gather(self, x: Tensor, is_equal: bool) -> list[Tensor]:
        if is_equal:
            found, x = x.new_empty((self.world, *x.shape)), x.contiguous()
            if (board := self._connections.board) is not None and x.is_cpu:
                self._call(board.gather, found, x)
            else:
                self._call(partial(dist.all_gather, group=self._connections.group), list(found), x)
            return list(found)
        # If they may differ in length, their lengths come first.
        lengths = [int(n) for n in self.gather(torch.tensor([len(x)]), is_equal=True)]
        longest = max(lengths)
        padded = x if len(x) == longest else pad(x, (0, 0) * (x.ndim - 1) + (0, longest - len(x)))
        return [each[:n] for each, n in zip(self.gather(padded, is_equal=True), lengths, strict=True)]

    def _sum(self, x: Tensor) -> Tensor:
        if (board := self._connections.board) is not None and x.is_cpu:
            total = torch.empty_like(x, memory_format=torch.contiguous_format)
            self._call(board.sum, total, x.contiguous())
        elif self.is_exact:
            total = super()._sum(x)
        else:
            total = x.clone(memory_format=torch.contiguous_format)
            self._call(partial(dist.all_reduce, group=self._connections.group), total)
        return total

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Tell the others of an exception that leaves this block, and in it, let SIGTERM name a rank that is lost."""
        self._connections = _answered(self._timeout, self._team.connect, self._timeout)
        self._failed, self._outer = None, sys.exception()
        is_main = threading.current_thread() is threading.main_thread()
        handles = is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # else the program does
        try:
            if handles:
                signal.signal(signal.SIGTERM, self._handle)
            yield
        except BaseException as error:
            self._failed = time.monotonic()
            if not isinstance(error, RankLostError):
                with suppress(RuntimeError, RankLostError):  # the store may be gone
                    self._agreed(f"rank {self.rank} of {self.world}: {''.join(traceback.format_exception(error))}")
            self._connections.close()
            raise
        if handles:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def cause_of_end(self, fault: str = "") -> str | None:
        """Return the text that names the rank that has failed; None if within a second none has.

        Args:
            fault: of the ranks that have not come to an operation that failed here; none without it.
        """
        until, team = time.monotonic() + SECONDS_TO_NAME, self._team
        try:
            while (cause := self._agreed(team.text(team.dead(), "is gone"))) is None and time.monotonic() < until:
                time.sleep(0.02)
            if cause or not fault:
                return cause
            while len(missing := self._missing()) > 1 and time.monotonic() < until + SECONDS_FOR_OTHERS:
                time.sleep(0.02)
            return self._agreed(team.text(missing, fault))
        except RuntimeError:  # the store itself
            return _store_text("is gone")

    def _call(self, collective: Callable[..., Any], *args: Any) -> None:
        began, connections = time.monotonic(), self._connections
        if connections.group is None:  # PyTorch would take the group of all processes, which has another time limit
            raise RankLostError(self._agreed("") or "the connections to the other ranks are closed")
        try:
            collective(*args)
        except RuntimeError as error:
            is_late = time.monotonic() - began >= self._timeout
            traceback.clear_frames(error.__traceback__)  # they hold the connections open
            with suppress(RuntimeError):
                _answered(0.0, connections.notes.set, f"waits {self.rank}", "")
            connections.close()
            late = f"did not come to a collective operation within {self._timeout:g} s"
            if (cause := self.cause_of_end(late if is_late else "is gone")) is None:
                raise  # of all ranks, such as a tensor that cannot be sent
            raise RankLostError(cause) from error

    def _missing(self) -> list[int]:
        # The ranks in which no operation has failed.
        check = self._connections.notes.check
        return [rank for rank in range(self.world) if not _answered(0.0, check, [f"waits {rank}"])]

    def _agreed(self, cause: str) -> str | None:
        # The first rank's cause counts: the others fail in its wake.
        notes = self._connections.notes
        if not cause and not _answered(0.0, notes.check, ["cause"]):
            return None
        return str(_answered(0.0, notes.compare_set, "cause", "", cause), "utf-8")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # torchrun ends the others when a rank fails, perhaps before a collective operation has failed here.
        if self._failed is None:
            if sys.exception() is not self._outer:  # it has, or this one failed too: the error is on its way
                return
            cause = self.cause_of_end()
            if cause is not None and not cause.endswith(ENDED):  # else the signal is meant for all
                raise RankLostError(cause)
            if cause is None and len(self._missing()) < self.world:  # operations of others have failed: this one's will
                return
            self._agreed(f"rank {self.rank} of {self.world}: {ENDED}")
        signal.signal(number, signal.SIG_DFL)
        # An error is on its way to the log: the first signal within seconds comes from torchrun.
        if self._failed is None or time.monotonic() - self._failed > SECONDS_TO_END:
            os.kill(os.getpid(), number)
