"""The ranks of a run: equal programs, each with its shard of the envs and the data, that train one algorithm together.

A rank is a process that `torchrun` started, or a thread of this one: a process that runs several shards gives each a
thread. All collectives stand on one, `gather`.
"""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from rltrainer.files.json_text import read_json

T = TypeVar("T")


class Ranks(ABC):
    """The place of one rank among all of a run. Every rank makes the same calls, in the same order.

    Args:
        rank: of this program, in [0, world).
        world: the number of ranks.
        is_exact: whether sums are taken in the order of ranks, which makes them the same however ranks are spread over
            processes; else in the order that is fastest.
    """

    def __init__(self, rank: int = 0, world: int = 1, is_exact: bool = False) -> None:
        self.rank, self.world, self.is_exact = rank, world, is_exact

    @abstractmethod
    def gather(self, x: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks in their order; their first axes [K] may differ in length."""

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor over ranks, where it has one shape."""
        first, *others = self.gather(x)
        total = first.clone()
        for each in others:
            total += each
        return total

    def max(self, x: Tensor) -> Tensor:
        """Return the largest of each number over ranks, where the tensor has one shape."""
        return torch.stack(self.gather(x)).amax(0)

    def from_first(self, value: Any) -> Any:
        """Return the plain value, as JSON knows it, of the first rank."""
        text = json.dumps(value).encode() if self.rank == 0 else b""
        return read_json(bytes(self.gather(torch.tensor(list(text), dtype=torch.uint8))[0].tolist()), allows_nan=True)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.gather(torch.zeros(1))


class Alone(Ranks):
    """The one rank of a run in one process."""

    def gather(self, x: Tensor) -> list[Tensor]:
        """Return its own tensor."""
        return [x]


ALONE = Alone()


class TorchRanks(Ranks):
    """A rank of `torch.distributed`, whose process group the caller has made."""

    def __init__(self, is_exact: bool = False) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size(), is_exact)

    def gather(self, x: Tensor) -> list[Tensor]:
        """Return the tensors of all processes; two collectives, as their lengths come first."""
        lengths = [int(n) for n in self._gather_equal(torch.tensor([len(x)], device=x.device))]
        longest = max(lengths)
        padded = pad(x, (0, 0) * (x.ndim - 1) + (0, longest - len(x)))
        return [each[:n] for each, n in zip(self._gather_equal(padded), lengths, strict=True)]

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over processes, in one collective."""
        if self.is_exact:
            first, *others = self._gather_equal(x)
            for each in others:
                first += each
            return first
        total = x.clone()
        dist.all_reduce(total)
        return total

    def max(self, x: Tensor) -> Tensor:
        """Return the largest over processes, in one collective."""
        largest = x.clone()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest

    def _gather_equal(self, x: Tensor) -> list[Tensor]:
        found = [torch.empty_like(x) for _ in range(self.world)]
        dist.all_gather(found, x.contiguous())
        return found


class ThreadRanks(Ranks):
    """A rank that is a thread of a process; `run_in_threads` makes them.

    Args:
        lane: the place of this thread among those of the process.
        meeting: where they meet.
    """

    def __init__(self, lane: int, meeting: "Meeting") -> None:
        outer = meeting.outer
        super().__init__(outer.rank * meeting.num + lane, outer.world * meeting.num, outer.is_exact)
        self._lane, self._meeting = lane, meeting

    def gather(self, x: Tensor) -> list[Tensor]:
        """Return the tensors of all threads of all processes; no thread may change them."""
        return self._meeting.meet(self._lane, x)


class Meeting:
    """The place where the threads of a process exchange tensors, and bring them to those of other processes.

    Args:
        num: of threads.
        outer: this process among the others, which have as many threads.
    """

    def __init__(self, num: int, outer: Ranks) -> None:
        self.num, self.outer = num, outer
        self._brought: list[Tensor] = [torch.empty(0)] * num
        self._found: list[Tensor] = []
        # Without a time limit: threads wait for each other's Python, and cannot be gone without an error.
        self._barrier = threading.Barrier(num, self._exchange)

    def meet(self, lane: int, x: Tensor) -> list[Tensor]:
        """Return what all threads brought, once all have come."""
        self._brought[lane] = x
        self._barrier.wait()
        return self._found  # the next exchange, which makes another list, needs this thread too

    def close(self) -> None:
        """End the wait of all threads, as one has failed."""
        self._barrier.abort()

    def _exchange(self) -> None:
        # Copies: a thread may go on and change what it brought before another one has read it.
        own = [x.clone() for x in self._brought]
        by_lane = [self.outer.gather(x) for x in own]
        self._found = [found[process] for process in range(self.outer.world) for found in by_lane]


def run_in_threads(functions: Sequence[Callable[[Ranks], T]], outer: Ranks | None = None) -> list[T]:
    """Call each function with its rank, the first one in this thread and the others in new ones; return their results.

    An error of one thread ends the others at their next collective; it is raised once all have ended.
    """
    if len(functions) == 1:
        return [functions[0](outer or ALONE)]
    meeting = Meeting(len(functions), outer or ALONE)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(lane: int) -> None:
        try:
            results[lane] = functions[lane](ThreadRanks(lane, meeting))
        except BaseException as error:
            if not isinstance(error, threading.BrokenBarrierError):  # a consequence
                errors.append(error)
            meeting.close()

    threads = [threading.Thread(target=run, args=(lane,), daemon=True) for lane in range(1, len(functions))]
    for thread in threads:
        thread.start()
    run(0)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[lane] for lane in range(len(functions))]
