"""The ranks of a run: equal programs, each with its shard of the envs and the data, that train one algorithm together.

A rank is a process that `torchrun` started, or a thread of this one: a process that runs several shards gives each a
thread. All collectives stand on one, `gather`. See `torch_ranks` for processes.
"""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

from rltrainer.errors import RanksDifferError
from rltrainer.files.json_text import read_json
from rltrainer.functional.losses import standardize
from rltrainer.functional.moments import moments, pooled, standardized
from rltrainer.seeding import draw_seed

T = TypeVar("T")
TOLERANCE = 1e-3
"""Largest difference by rounding on machines of several kinds, relative to the largest number of a tensor."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


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
        self.is_first_here = True  # of the ranks in this process
        self.stream: tuple[int, ...] = (rank,)  # what a seed of this rank's own random numbers derives from
        self.prefix = f"{world} shards, "  # of a line that says how a run trains

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself: a place is not copied."""
        return self

    def part_of(self, count: int) -> int:
        """Return this rank's part of a count: the first ranks have one more where there are no equal parts."""
        return count // self.world + (self.rank < count % self.world)

    def gather(self, x: Tensor, is_equal: bool = False) -> list[Tensor]:
        """Return the tensors of all ranks in their order; unless they are of one shape, axes [K, ...] differ in K.

        Within `in_graphs` a compiled graph may gather tensors of one shape, and take sums, without a break.
        """
        if torch.compiler.is_dynamo_compiling():  # not `is_compiling`, which another thread's compilation makes true
            return list(_gather_in_graph(x, self.world))
        return self._gather(x, is_equal)

    @abstractmethod
    def _gather(self, x: Tensor, is_equal: bool) -> list[Tensor]:
        """Return the tensors of all ranks; see `gather`."""

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor [...] over ranks, where it has one shape."""
        return _sum_in_graph(x) if torch.compiler.is_dynamo_compiling() else self._sum(x)

    def _sum(self, x: Tensor) -> Tensor:
        first, *others = self.gather(x, is_equal=True)
        total = first.clone(memory_format=torch.contiguous_format)
        for each in others:
            total += each
        return total

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of a tensor [...] over ranks, where it has one shape."""
        return self.sum(x).div_(self.world)

    def means(self, named: dict[str, Any], device: torch.device) -> dict[str, Any]:
        """Return the means of numbers over ranks by name; each rank has the same names."""
        if not named:
            return named
        names = sorted(named)  # the order of all ranks
        own = [torch.as_tensor(named[name], dtype=torch.float64, device=device) for name in names]
        average = dict(zip(names, self.mean(torch.stack(own)).unbind(), strict=True))
        return {name: average[name] for name in named}

    def max(self, x: Tensor) -> Tensor:
        """Return the largest of each number over ranks, where the tensor [...] has one shape."""
        return torch.stack(self.gather(x, is_equal=True)).amax(0)

    def largest(self, own: Sequence[int]) -> Sequence[int]:
        """Return the largest of each number over ranks."""
        found: list[int] = self.max(torch.tensor(own)).tolist()
        return found

    def moments(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the moments [3, ...] of the numbers `x` [..., B] of all ranks, under weights [..., B] or [B]."""
        return pooled(torch.stack(self.gather(moments(x, weight), is_equal=True)))

    def merged(self, count: int, mean: Tensor, deviations: Tensor) -> tuple[int, Tensor, Tensor]:
        """Merge count, mean [...] and sum of squared deviations [...] of a sample with the other ranks' samples."""
        own = torch.stack([torch.full_like(mean, count), mean, deviations])
        own = own if count else torch.zeros_like(own)  # the mean of nothing is NaN
        counts, mean, deviations = pooled(torch.stack(self.gather(own, is_equal=True)))
        return int(counts.amax()), mean, deviations

    def standardized(self, x: Tensor, weight: Tensor) -> Tensor:
        """Shift and scale `x` [B], with the numbers of all ranks, to mean 0 and standard deviation 1."""
        return standardized(x, self.moments(x, weight))

    def seed(self, seed: int | None) -> int | None:
        """Return a seed that all ranks have: this one, or a number that the first rank draws."""
        return self.on_first(draw_seed) if seed is None else seed

    @torch.no_grad()
    def make_equal(self, named: Callable[[], Mapping[Tensor, str]], machine: Callable[[], str] | None = None) -> None:
        """Give all ranks the first one's numbers in tensors of any shape; equal ones cost checksums and one exchange.

        With a `machine`, on which rounding depends, a difference is an error, unless machines differ and it is small.

        Raises:
            RanksDifferError: on all ranks; the text names the tensor and the rank.
        """
        tensors = named()
        if not tensors:
            return
        device = next(iter(tensors)).device
        bits = (x.reshape(-1).view(INTEGERS.get(x.element_size(), torch.int64)) for x in tensors)
        sums = self.gather(torch.stack([x.sum(dtype=torch.int64).to(device) for x in bits]), is_equal=True)
        are_equal = (torch.stack(sums) == sums[0]).all(0).tolist()
        if all(are_equal):
            return
        tolerance = TOLERANCE if machine is not None and len(set(self.from_all(machine()))) > 1 else 0.0
        for x, name in (item for item, is_equal in zip(tensors.items(), are_equal, strict=True) if not is_equal):
            found = torch.stack(self.gather(x.detach(), is_equal=True)).double().view(self.world, -1)
            change = (found - found[0]).abs().amax(1)
            if machine is not None and not change.max() <= tolerance * found[0].abs().max():  # so NaN differs, too
                rank = int(change.argmax())
                text = f"must be equal in all ranks; rank {rank} of {self.world} differs from rank 0"
                hint = "Hooks run in each shard, with its data: change weights in a callback such as training_fn."
                raise RanksDifferError(f"{name}: {text} by up to {float(change[rank]):g}. {hint}")
            x.copy_(found[0].view_as(x))

    def from_all(self, value: Any) -> list[Any]:
        """Return the plain values, as JSON knows them, of all ranks."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [read_json(each.numpy().tobytes().decode(), allows_nan=True) for each in self.gather(text)]

    def on_first(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in the first rank, and return its result, a plain value, in all."""
        return cast(T, self.from_first(self.once(function, *args)))

    def from_first(self, value: Any) -> Any:
        """Return the plain value of the first rank."""
        return self.from_all(value)[0]

    def once(self, function: Callable[..., T], *args: Any, **options: Any) -> T | None:
        """Call a function in the first rank alone, and return its result there; the others do not wait for it."""
        return function(*args, **options) if self.rank == 0 else None

    def attempt(self, act: Callable[[], Any], failure: type[Exception]) -> list[Any]:
        """Call a function in each rank, and return the plain values of all.

        Raises:
            failure: one of them raised; the text names its rank, and is the same on all.
        """
        value = problem = cause = None
        try:
            value = act()
        except Exception as error:  # any: the others wait for this rank
            is_of_run, cause = self.rank == 0 and isinstance(error, failure), error
            problem = str(error) if is_of_run else f"rank {self.rank} of {self.world}: {type(error).__name__}: {error}"
        found = self.from_all([value, problem])
        if problems := [problem for _, problem in found if problem is not None]:
            raise failure(problems[0]) from cause
        return [value for value, _ in found]

    @contextmanager
    def in_graphs(self) -> Iterator[None]:
        """Serve the exchanges of compiled graphs that this thread runs in this block, and raise their errors as such.

        A graph that calls an exchange from C++ turns its error into a `RuntimeError` without a cause.
        """
        _of_thread.ranks, _of_thread.error = self, None
        try:
            yield
        except RuntimeError:
            if _of_thread.error is not None:
                raise _of_thread.error from None
            raise
        finally:
            _of_thread.error = None  # its frames would keep a run alive

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Tell the other processes of an exception that leaves this block."""
        yield

    def cause_of_end(self) -> str | None:
        """Return the text that names a rank that has failed, for the handler of a SIGTERM; None if none has."""
        return None


_of_thread = threading.local()
"""The ranks of this thread, and the error of their last exchange in a graph. Graphs that named ranks would differ."""


def _exchange(function: Callable[[Ranks], Tensor]) -> Tensor:
    try:
        return function(_of_thread.ranks)
    except BaseException as error:
        _of_thread.error = error
        raise


@torch.library.custom_op("rltrainer::sum_over_ranks", mutates_args=())
def _sum_in_graph(x: Tensor) -> Tensor:
    return _exchange(lambda ranks: ranks.sum(x))


@torch.library.custom_op("rltrainer::gather_over_ranks", mutates_args=())
def _gather_in_graph(x: Tensor, world: int) -> Tensor:
    return _exchange(lambda ranks: torch.stack(ranks.gather(x, is_equal=True)))


_sum_in_graph.register_fake(lambda x: x.new_empty(x.shape))  # contiguous, as all results are
_gather_in_graph.register_fake(lambda x, world: x.new_empty((world, *x.shape)))


class Alone(Ranks):
    """The one rank of a run in one process: it exchanges nothing, so that no caller asks how many ranks there are."""

    def __init__(self, is_exact: bool = False) -> None:
        super().__init__(is_exact=is_exact)
        self.stream, self.prefix = (), ""

    def gather(self, x: Tensor, is_equal: bool = False) -> list[Tensor]:
        """Return its own tensor [...] in a list."""
        return [x]

    _gather = gather

    def sum(self, x: Tensor) -> Tensor:
        """Return its argument [...]."""
        return x

    mean = max = sum

    def means(self, named: dict[str, Any], device: torch.device) -> dict[str, Any]:
        """Return its argument."""
        return named

    def largest(self, own: Sequence[int]) -> Sequence[int]:
        """Return its argument."""
        return own

    def moments(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the moments [3, ...] of `x` [..., B]; see `functional.moments.moments`."""
        return moments(x, weight)

    def merged(self, count: int, mean: Tensor, deviations: Tensor) -> tuple[int, Tensor, Tensor]:
        """Return its arguments, tensors [...]."""
        return count, mean, deviations

    def standardized(self, x: Tensor, weight: Tensor) -> Tensor:
        """Shift and scale `x` [B] to mean 0 and standard deviation 1; see `functional.losses.standardize`."""
        return standardize(x, weight)

    def make_equal(self, named: Callable[[], Mapping[Tensor, str]], machine: Callable[[], str] | None = None) -> None:
        """Leave tensors of any shape as they are."""

    def attempt(self, act: Callable[[], Any], failure: type[Exception]) -> list[Any]:
        """Call a function; its errors are raised as they are."""
        return [act()]

    def from_all(self, value: Any) -> list[Any]:
        """Return its own value as it is."""
        return [value]

    def seed(self, seed: int | None) -> int | None:
        """Return its argument."""
        return seed


ALONE = Alone()


class ThreadRanks(Ranks):
    """A rank that is a thread of a process; a `Meeting` makes them.

    Args:
        lane: the place of this thread among the process's threads.
        meeting: where they meet.
    """

    def __init__(self, lane: int, meeting: "Meeting") -> None:
        outer = meeting.outer
        super().__init__(outer.rank * meeting.num + lane, outer.world * meeting.num, outer.is_exact)
        self._lane, self._meeting, self.is_first_here = lane, meeting, lane == 0

    def _gather(self, x: Tensor, is_equal: bool) -> list[Tensor]:
        return self._meeting.meet(self._lane, x, is_equal)  # no thread may change them

    def cause_of_end(self) -> str | None:
        """Return the process's cause."""
        return self._meeting.outer.cause_of_end()


class Meeting:
    """The place where the threads of a process exchange tensors, with each other and with other processes.

    Args:
        num: of threads.
        outer: this process among the others, which have as many threads.

    Attributes:
        ranks: one for each thread; for a single one, the process's own.
        is_on: whether threads are at work.
    """

    def __init__(self, num: int, outer: Ranks = ALONE) -> None:
        self.num, self.outer = num, outer
        self.ranks: list[Ranks] = [outer] if num == 1 else [ThreadRanks(lane, self) for lane in range(num)]
        self.is_on = False
        self._brought: list[Tensor] = [torch.empty(0)] * num
        self._is_equal, self._found = True, list[Tensor]()
        # Without a time limit: threads wait for each other's Python, and cannot be gone without an error.
        self._barrier = threading.Barrier(num, self._exchange)

    def meet(self, lane: int, x: Tensor, is_equal: bool) -> list[Tensor]:
        """Return what all threads brought [...], once all have come. `is_equal`, one shape, is the same everywhere."""
        self._brought[lane], self._is_equal = x, is_equal
        self._barrier.wait()
        return self._found  # the next exchange, which makes another list, needs this thread too

    @contextmanager
    def running(self, others: Sequence[Callable[[], Any]]) -> Iterator[None]:
        """Call functions in the other threads, while this thread runs the block.

        An error of one ends the others at their next exchange; it is raised once all have ended, and told to other
        processes.
        """
        errors: list[BaseException] = []

        @contextmanager
        def noting_errors() -> Iterator[None]:
            try:
                yield
            except BaseException as error:
                if not (isinstance(error, threading.BrokenBarrierError) and self._barrier.broken):  # else a consequence
                    errors.append(error)
                self._barrier.abort()

        def call(function: Callable[[], Any]) -> None:
            with noting_errors():
                function()

        threads = [threading.Thread(target=call, args=(function,), daemon=True) for function in others]
        with self.outer.reporting():
            self._barrier.reset()
            self.is_on = True
            try:
                for thread in threads:
                    thread.start()
                with noting_errors():
                    yield
                for thread in threads:
                    thread.join()
            finally:
                self.is_on = False
            if errors:
                raise errors[0]

    def _exchange(self) -> None:
        # Copies: a thread may go on and change what it brought before another one has read it.
        if self._is_equal:
            self._found = [x for found in self.outer.gather(torch.stack(self._brought), is_equal=True) for x in found]
            return
        own = [x.clone() for x in self._brought]
        by_lane = [self.outer.gather(x) for x in own]
        self._found = [found[process] for process in range(self.outer.world) for found in by_lane]
