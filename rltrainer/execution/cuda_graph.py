"""Functions of tensors as CUDA graphs: recorded once for each shape of their arguments, then replayed.

A small gradient step is hundreds of kernels of a few microseconds, and launching one takes as long as running it. A
graph launches all of them at once.
"""

import contextlib
import dataclasses
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rltrainer.tree import Tree, map_tensors, packed_like

MAX_GRAPHS = 32
"""Number of shapes that are recorded, as each holds memory; calls of further shapes run without a graph."""
NUM_WARM_UPS = 3
"""Runs before a capture: libraries reserve memory in them and the compiler compiles, which cannot be captured."""


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """Raise at operations that wait for the device: a capture would fail, and leave PyTorch's allocator in it."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says once that it does not find all of them
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextlib.contextmanager
def undone(state: Sequence[Tensor], generators: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """Restore tensors and generators at the exit: the runs before a recording do not count."""
    tensors = [tensor.detach() for tensor in state]
    before = [tensor.clone() for tensor in tensors]
    drawn_before = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        _copy(tensors, before)
        for generator, drawn in zip(generators, drawn_before, strict=True):
            generator.set_state(drawn)


class CudaRecorder:
    """Records CUDA graphs, which share one pool of memory as they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._alive = weakref.WeakSet[torch.cuda.CUDAGraph]()
        # Libraries keep memory for each stream: what a capture reserves must be the graphs' own.
        self._warm_up_stream, self._capture_stream = (
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch ships no type of it
            for _ in range(2)
        )

    def warm_up(self, function: Callable[[], Any]) -> None:
        """Run a function on a stream of its own, as for a capture."""
        with torch.cuda.device(self._device):
            stream, current = self._warm_up_stream, torch.cuda.current_stream()
            stream.wait_stream(current)
            try:
                with torch.cuda.stream(stream):
                    for _ in range(NUM_WARM_UPS):
                        function()
            finally:  # after an error, too: the memory of the arguments is freed on the current stream
                current.wait_stream(stream)

    def capture(self, function: Callable[[], Any], generators: Sequence[torch.Generator] = ()) -> Callable[[], Any]:
        """Record the kernels of a function without running them, and return a function that replays them.

        Its outputs are the same tensors at each replay, and it draws from `generators` as it would without a graph.
        """
        if not self._alive:  # PyTorch takes no pool whose graphs are all gone
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        self._alive.add(graph)
        try:
            with torch.cuda.device(self._device):
                for generator in generators:
                    graph.register_generator_state(generator)
                # Of this thread: what another one does meanwhile, such as acting, must not end the capture.
                with torch.cuda.graph(graph, self._pool, self._capture_stream, capture_error_mode="thread_local"):
                    outputs = function()
        except Exception as error:
            # PyTorch leaves the generators of a capture that failed as if it were still under way: they raise at the
            # next draw. A copy of their state is not marked so.
            for generator in (*generators, torch.cuda.default_generators[self._device.index or 0]):
                generator.graphsafe_set_state(generator.clone_state())
            raise error.__context__ or error from None  # the end of a failed capture raises an error that says less

        def replay() -> Any:
            graph.replay()
            return outputs

        return replay


class CudaGraphs:
    """Calls a function that changes some tensors in place, by replaying its kernels."""

    # Arguments and result are tensors, numbers, texts and None, in dataclasses, dicts, lists and tuples. A graph is
    # recorded for each combination of shapes, dtypes and values that are no tensors. The results equal the function's
    # own, bit for bit. Its Python code runs only while it is recorded, so it has no branch on a tensor's value and
    # samples random numbers from `generators` only. `state` returns all tensors that it may change, except new ones.

    def __init__(
        self,
        function: Callable[..., Any],
        state: Callable[[], Sequence[Tensor]],
        recorder: CudaRecorder,
        generators: Sequence[torch.Generator] = (),
        name: str = "the gradient step",
    ) -> None:
        self._name = name
        self._function, self._state, self._recorder, self._generators = function, state, recorder, generators
        self._graphs: dict[Hashable, tuple[list[Tensor], Callable[[], Any]]] = {}
        self.is_on = True

    def __call__(self, *args: Any) -> Any:
        """Return the function's result for these arguments, in memory of its own."""
        graph, inputs = self._graph(args) if self.is_on else (None, [])
        if graph is None:
            return self._function(*args)
        static_inputs, replay = graph
        _copy(static_inputs, inputs)
        result, outputs = replay(), list[Tensor]()
        _take_apart(result, outputs)
        # The next replay writes into the same memory.
        copies = [torch.empty_like(output) for output in outputs]
        _copy(copies, outputs)
        return _with_tensors(result, copies)

    def _graph(self, args: Any) -> tuple[tuple[list[Tensor], Callable[[], Any]] | None, list[Tensor]]:
        """Return the graph for these arguments, None if there is none, and their tensors."""
        inputs: list[Tensor] = []
        try:
            key = _take_apart(args, inputs)
            if any(tensor.device != inputs[0].device for tensor in inputs):
                raise TypeError("its arguments are on several devices")
        except TypeError as error:
            self.give_up(error)
            return None, inputs
        if key not in self._graphs and len(self._graphs) < MAX_GRAPHS:
            self._record(key, args, inputs)
        return self._graphs.get(key), inputs

    def _record(self, key: Hashable, args: Any, inputs: list[Tensor]) -> None:
        static_inputs = [tensor.detach().clone() for tensor in inputs]
        call = partial(self._function, *_with_tensors(args, static_inputs))
        with undone(self._state(), self._generators):
            self._recorder.warm_up(call)  # errors of the function itself are raised here
            try:
                self._graphs[key] = static_inputs, self._recorder.capture(call, self._generators)
            except Exception as error:
                self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Run without graphs from now on, with a warning that gives the reason."""
        self.is_on = False
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"recording {self._name} as a CUDA graph failed, it runs without: {reason}", stacklevel=5)


class HostGraph:
    """A recorded `function(obs, memory, generator)`; what it returns comes down to the host in one copy.

    The function returns a dict of tensors for the host, and the next memory, which is written into the graph's own
    `memory`. All else that it reads stays at its place.

    Raises:
        Exception: the function cannot be recorded.
    """

    def __init__(
        self, function: Callable[..., tuple[dict[str, Tensor], Tensor | None]], obs: Tree, memory: Tensor | None,
        generator: torch.Generator, recorder: CudaRecorder, device: torch.device,
    ) -> None:  # fmt: skip
        self.obs, self.generator, self.memory = obs, generator, None if memory is None else memory.clone()
        found, _ = function(obs, self.memory, generator)
        self._sent, self._places = packed_like(found, device)
        self._received, values = packed_like(found, "cpu", pin_memory=True)
        self._values: dict[str, Tensor] = values
        run = partial(self._run, function)
        with without_waiting():
            run()
        recorder.warm_up(run)
        self._replay = recorder.capture(run, [generator])

    def _run(self, function: Callable[..., tuple[dict[str, Tensor], Tensor | None]]) -> None:
        values, after = function(self.obs, self.memory, self.generator)
        if self.memory is None and after is not None:
            raise RuntimeError("decide returns a memory, and initial_state none")
        for name, place in self._places.items():
            place.copy_(values[name])
        if self.memory is not None and after is not None:
            self.memory.copy_(after)  # after the dict, which may have the memory as it was

    def __call__(self) -> dict[str, Tensor]:
        """Run the function; return its dict, in memory that the next call overwrites."""
        self._replay()
        self._received.copy_(self._sent)  # the one wait
        return self._values


def _take_apart(value: Any, tensors: list[Tensor]) -> Hashable:
    """Append the tensors in a value to a list, and return everything else about it; a `TypeError` if it has no key."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.shape, value.dtype, value.device
    if value is None or isinstance(value, bool | int | float | str):
        return type(value), value
    if isinstance(value, dict):
        return tuple((key, _take_apart(part, tensors)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return type(value), *(_take_apart(part, tensors) for part in value)
    if dataclasses.is_dataclass(value):
        return type(value), *(_take_apart(getattr(value, f.name), tensors) for f in dataclasses.fields(value))
    raise TypeError(f"its arguments hold a {type(value).__name__}")


def _with_tensors(value: Any, tensors: Iterable[Tensor]) -> Any:
    """Return a value with other tensors in place of its own."""
    rest = iter(tensors)
    return map_tensors(lambda _: next(rest), value)


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others of their shapes and dtypes, in one kernel for each dtype."""
    by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        pair = by_dtype.setdefault(target.dtype, ([], []))
        pair[0].append(target)
        pair[1].append(source)
    for ones, others in by_dtype.values():
        torch._foreach_copy_(ones, others)
