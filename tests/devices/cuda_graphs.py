"""CUDA graphs of the second device: the operations of ATen that a capture saw, run again at each replay.

On CUDA nothing runs during a capture. Here the operations run, since Python needs their results, and are undone at its
end: what they changed is restored, and what they made is filled with numbers that no one expects.
"""

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tests.devices.streams import (
    CaptureError,
    Download,
    Stream,
    StreamContext,
    Upload,
    Uses,
    alias,
    note_work,
    spoil,
    uses_of,
)

NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
MADE_WITHOUT_WORK = ("empty", "new_empty")
"""How operations begin that take memory without writing it."""


class FreedMemory(RuntimeError):
    """A graph reads or writes memory that was freed since its capture."""


class Outside:
    """A tensor of memory that a graph does not own: between replays it does not keep the memory alive."""

    def __init__(self, x: Tensor) -> None:
        self.tensor = alias(x)
        self._memory = StorageWeakRef(x.untyped_storage())
        self._place = x.storage_offset(), x.size(), x.stride()

    def bind(self) -> None:
        """Find the memory, where it was."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self._memory.cdata)
        if storage is None:
            raise FreedMemory(f"a CUDA graph uses memory {self._place[1]} that was freed since its capture")
        torch.ops.aten.set_.source_Storage_storage_offset(self.tensor, storage, *self._place)

    def release(self) -> None:
        """Let go of the memory."""
        torch.ops.aten.set_.source_Storage(self.tensor, torch.UntypedStorage())


class CUDAGraph:
    """A graph: its operations, with the tensors that they read and write."""

    capturing: ClassVar["CUDAGraph | None"] = None
    pools: ClassVar[dict[Any, Uses]] = {}
    """The memory of each pool: graphs of one pool cannot run at the same time."""
    in_pool: ClassVar[dict[Any, weakref.WeakSet["CUDAGraph"]]] = {}
    """The graphs of each pool: after the last one is gone it can take no more."""
    left_open: ClassVar[set[int]] = set()
    """The generators of captures that failed, which raise at the next draw."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: Any = (0, id(self))
        self._generators = {torch.default_generator._cdata}
        self.reset()

    def reset(self) -> None:
        """Forget the operations."""
        self._steps: list[Callable[[], object]] = []
        self._made: dict[int, Tensor] = {}
        self._outside: dict[Any, Outside] = {}
        self._read: dict[int, Uses] = {}
        self._written: list[Uses] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._is_captured = self.is_broken = False

    def pool(self) -> Any:
        """Return the name of the memory pool."""
        return self._pool

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let operations draw from a generator of the device."""
        if generator.device.type != "cuda":
            raise RuntimeError("Expected a CUDA generator")
        self._generators.add(generator._cdata)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begin to record."""
        if CUDAGraph.capturing is not None:
            raise CaptureError(NOT_PERMITTED)
        if self._is_captured:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph")
        self._pool = pool or self._pool
        others = CUDAGraph.in_pool.setdefault(self._pool, weakref.WeakSet([self]))
        if pool is not None and not others:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        others.add(self)
        CUDAGraph.capturing = self

    def capture_end(self) -> None:
        """Stop to record, and undo what the operations did."""
        CUDAGraph.capturing = None
        with torch._C._DisableTorchDispatch(), torch.inference_mode():
            for memory, before in self._before.values():
                memory.copy_(before)
            for made in self._made.values():
                spoil(made)
                uses_of(made, is_new=True)
            self._written = [uses_of(memory) for memory, _ in self._before.values()]
            self._before = {}
            for outside in self._outside.values():
                outside.release()
        if self.is_broken:
            CUDAGraph.left_open |= self._generators
            self.reset()
            raise CaptureError("CUDA error: operation failed due to a previous error during capture")
        if not self._steps:
            warnings.warn("The CUDA Graph is empty.", stacklevel=3)
        self._is_captured = True

    def replay(self) -> None:
        """Run the operations."""
        if not self._is_captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if CUDAGraph.capturing is not None:
            raise CaptureError(NOT_PERMITTED)
        if not Stream.is_alone:
            pool = CUDAGraph.pools.setdefault(self._pool, Uses())
            note_work(self._read.values(), [pool, *map(uses_of, self._made.values()), *self._written])
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.inference_mode():
            for outside in self._outside.values():
                outside.bind()
            for step in self._steps:
                step()
            for outside in self._outside.values():
                outside.release()

    def refuse(self, name: str) -> None:
        """Raise the error of what cannot be captured, which ends the capture."""
        self.is_broken = True
        raise CaptureError(f"{NOT_PERMITTED} ({name})")

    def copy(self, target: Tensor, source: Tensor, is_download: bool) -> None:
        """Record a copy to or from pinned memory."""
        self._keep([target])
        self._note_read([source])
        target.copy_(source)
        kind, one, other = Download if is_download else Upload, self._alias(target), self._alias(source)
        self._steps.append(lambda: kind(one, other))

    def run(self, func: Any, args: Any, kwargs: Any, is_on_cuda: Callable[[Tensor], bool]) -> Any:
        """Run and record an operation."""
        written = [*written_tensors(func, args, kwargs)]
        self._keep(written)
        generator = self._generator(func, args, kwargs)
        state = None if generator is None else generator.get_state()
        result = func(*args, **kwargs)
        if generator is not None and state is not None:
            generator.set_state(state)  # a capture draws nothing
        self._note_read(filter(is_on_cuda, tensors([args, kwargs])))
        known = {storage_id(x) for x in tensors([args, kwargs])}
        results = [*tensors([result])]
        made = [storage_id(x) not in known for x in results]
        targets = [alias(x) for x, is_made in zip(results, made, strict=True) if is_made]
        self._made |= {storage_id(x): x for x in targets}
        name = func._schema.name.removeprefix("aten::")
        if (not targets and not written) or name.startswith(MADE_WITHOUT_WORK):
            return result

        # A number of the host is read now: CUDA passes it to the kernel by value.
        args, kwargs = replaced((args, kwargs), lambda x: self._alias(x) if is_on_cuda(x) else x.clone())

        def step() -> None:
            found = tensors([func(*args, **kwargs)])
            for target, x in zip(targets, [x for x, is_made in zip(found, made, strict=True) if is_made], strict=True):
                target.copy_(x)

        self._steps.append(step)
        return result

    def _generator(self, func: Any, args: Any, kwargs: Any) -> torch.Generator | None:
        """Return the generator from which an operation draws, if it does."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return None
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch._C.Generator)]
        generator = given[0] if given else torch.default_generator
        if generator._cdata not in self._generators:
            self.is_broken = True
            raise CaptureError("Attempt to increase offset for a CUDA generator not in capture mode.")
        return generator

    def _alias(self, x: Tensor) -> Tensor:
        """Return a tensor of the same memory for the replays."""
        if (memory := storage_id(x)) in self._made:
            return alias(x)
        key = memory, x.storage_offset(), x.size(), x.stride(), x.dtype
        return self._outside.setdefault(key, Outside(x)).tensor

    def _note_read(self, read: Iterable[Tensor]) -> None:
        self._read |= {storage_id(x): uses_of(x) for x in read if storage_id(x) not in self._made}

    def _keep(self, written: Iterable[Tensor]) -> None:
        """Keep the numbers of memory that was there before the capture, before they change for the first time."""
        for x in written:
            key = storage_id(x)
            if key not in self._made and key not in self._before:
                memory = torch.ops.aten.set_.source_Storage(torch.empty(0, dtype=torch.uint8), x.untyped_storage())
                self._before[key] = memory, memory.clone()


def storage_id(x: Tensor) -> int:
    """Return what is the same for tensors of the same memory."""
    return x.untyped_storage()._cdata


def tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments or results, those in lists, tuples and dicts included."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            yield from tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from tensors(value)


def replaced(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a value with other tensors in place of its own."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: replaced(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(replaced(item, function) for item in value)
    return value


def written_tensors(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the tensors that an operation writes."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors([args[position] if position < len(args) else kwargs.get(argument.name)])


class GraphContext:
    """Records what is called in it as a graph."""

    def __init__(
        self, cuda_graph: CUDAGraph, pool: Any = None, stream: Stream | None = None, capture_error_mode: str = "global"
    ) -> None:
        self._graph, self._pool, self._stream = cuda_graph, pool, StreamContext(stream or Stream())

    def __enter__(self) -> None:
        torch.cuda.synchronize()
        self._stream.__enter__()
        self._graph.capture_begin(self._pool)

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.__exit__(kind, error, trace)
        self._graph.is_broken |= error is not None
        self._graph.capture_end()  # after an error of the body it raises another one, which says less
