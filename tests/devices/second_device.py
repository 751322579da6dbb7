"""A second device on a machine that has none: CPU memory that says it is on `cuda` and refuses to mix, as CUDA does.

The numbers are real, so whole trainings run in it, `.item()` and all, as CUDA graphs too (`cuda_graphs`). Work is done
at once; only pinned memory shows that a copy is under way (`streams`). It does not see TF32.

Three layers share the work: a place is a mark on a tensor's storage; `_Operations` sees every operation of ATen below
Python, refuses mixtures and marks results; `SecondDevice` sees every call from Python, answers `x.device`, takes
`device=` arguments and refuses what leaves the device by another way, such as `x.numpy()`.
"""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.devices.cuda_graphs import CUDAGraph, GraphContext, tensors, written_tensors
from tests.devices.streams import (
    CaptureError,
    Download,
    Event,
    Stream,
    StreamContext,
    Upload,
    note_new,
    note_work,
    uses_of,
    wait,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)

CROSSES = {"copy_", "_foreach_copy_", "_to_copy", "set_"}
"""Operations that may read one device and write the other."""
INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
"""Operations whose indices may lie on the CPU."""
TAKES_NO_CPU_SCALAR = {"cat", "stack", "gather", "scatter", "scatter_", "index_select", "index_add_", "index_copy_"}
"""Operations for which a tensor without axes is no exception: others take one of the CPU as a number."""
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "bincount"}
"""Operations whose result the host needs at once, if only for its shape."""
PASSED_ON = {"_parse_to", "__set__", "untyped_storage"}
"""Calls from Python that PyTorch itself makes about devices and storages."""


class DeviceMismatch(RuntimeError):
    """Two tensors of an operation lie on different devices."""


class DeviceWait(RuntimeError):
    """The host waited for the device where `torch.cuda.set_sync_debug_mode` forbids it."""


def is_on_cuda(x: Tensor) -> bool:
    """Tell whether a tensor's memory is marked as the second device's."""
    return getattr(x.untyped_storage(), "place", CPU) == CUDA


_PINNED: list[tuple[StorageWeakRef, int, int]] = []
"""Pinned memory, with its first address and the one after its last."""


def is_pinned(x: Tensor) -> bool:
    """Tell whether a tensor's memory is of the host and pinned, even if it came here by way of an array."""
    _PINNED[:] = [each for each in _PINNED if not each[0].expired()]
    return any(first <= x.data_ptr() < end for _, first, end in _PINNED)


def _pin(x: Tensor) -> None:
    memory = x.untyped_storage()
    _PINNED.append((StorageWeakRef(memory), memory.data_ptr(), memory.data_ptr() + memory.nbytes()))


class _Operations(TorchDispatchMode):
    """Refuses operations on tensors of both devices, and marks results as the second one's if the inputs are."""

    waiting_is_an_error = False
    makes_on_cuda = False
    """Whether a function is running that was told to make its result on the second device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [*tensors(args), *tensors(kwargs.values())]
        places = [is_on_cuda(x) for x in inputs]
        graph = CUDAGraph.capturing
        if not any(places):
            if graph is not None and self.makes_on_cuda and not inputs:
                return graph.run(func, args, kwargs, is_on_cuda)
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if not all(places) and _is_refused(name, func, args, kwargs, places):
            found = [("cuda" if there else "cpu", tuple(x.shape)) for x, there in zip(inputs, places, strict=True)]
            raise DeviceMismatch(f"{name}: expected all tensors to be on the same device, found {found}")
        if not all(places) and name in ("copy_", "_foreach_copy_"):
            is_blocking = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
            for target, source in zip(*map(tensors, ([args[0]], [args[1]])), strict=True):
                if is_on_cuda(target) == is_on_cuda(source):
                    self.__torch_dispatch__(torch.ops.aten.copy_.default, types, (target, source))
                else:
                    self.copy(target, source, is_blocking)
            return args[0] if name == "copy_" else None
        if _waits(name, args, kwargs):
            self.let_host_wait(name)
        if graph is not None:
            result = graph.run(func, args, kwargs, is_on_cuda)
        else:
            _note_work(func, args, kwargs)
            result = func(*args, **kwargs)
        if name not in CROSSES or name == "_to_copy":
            for x in tensors([result]):
                if not any(x is given for given in inputs):
                    _place_on_cuda(x)
        return result

    def let_host_wait(self, name: str) -> None:
        """Wait for the current stream, where the host may."""
        if CUDAGraph.capturing is not None:
            CUDAGraph.capturing.refuse(name)
        if self.waiting_is_an_error:
            raise DeviceWait(f"{name}: the host would wait for the device")
        wait(Stream.current.now())

    def copy(self, target: Tensor, source: Tensor, is_blocking: bool) -> None:
        """Copy from one device to the other."""
        is_download = is_on_cuda(source)
        graph = CUDAGraph.capturing
        if is_blocking or (graph is not None and not is_pinned(target if is_download else source)):
            self.let_host_wait("copy_")
        if graph is not None:
            graph.copy(target, source, is_download)
            return
        if not Stream.is_alone:
            note_work(*([uses_of(source)], []) if is_download else ([], [uses_of(target)]))
        if not is_blocking and is_pinned(target if is_download else source):
            (Download if is_download else Upload)(target, source)
        else:
            target.copy_(source)


def _place_on_cuda(x: Tensor) -> None:
    """Mark a result's memory as the second device's."""
    storage: Any = x.untyped_storage()
    if getattr(storage, "place", CPU) != CUDA:
        storage.place = CUDA
        if not Stream.is_alone and CUDAGraph.capturing is None:
            note_new(x)


def _note_work(func: Any, args: Any, kwargs: Any) -> None:
    """Note what an operation reads and writes, if that is to be noted."""
    if Stream.is_alone or func.is_view:
        return
    written = {id(uses): uses for uses in map(uses_of, filter(is_on_cuda, written_tensors(func, args, kwargs)))}
    found = map(uses_of, filter(is_on_cuda, tensors([args, kwargs])))
    note_work([uses for uses in found if id(uses) not in written], written.values())


def _is_refused(name: str, func: Any, args: Any, kwargs: Any, places: list[bool]) -> bool:
    """Tell whether CUDA refuses an operation on tensors of both devices."""
    if name in CROSSES:
        return False
    if name in INDEXES:
        values = args[2:3]
        return not places[0] or any(not is_on_cuda(x) and x.dim() > 0 for x in tensors(values))
    if any(not is_on_cuda(x) for x in written_tensors(func, args, kwargs)) or name in TAKES_NO_CPU_SCALAR:
        return True
    inputs = itertools.chain(tensors(args), tensors(kwargs.values()))
    return any(x.dim() > 0 for x, there in zip(inputs, places, strict=True) if not there)


def _waits(name: str, args: Any, kwargs: Any) -> bool:
    """Tell whether the host waits for the second device in this operation."""
    if name in INDEXES:
        indices = [*tensors(args[1:2])]
        return any(x.dtype in (torch.bool, torch.uint8) or (x.dim() > 0 and not is_on_cuda(x)) for x in indices)
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in WAITS


class SecondDevice(TorchFunctionMode):
    """Runs what is called in it on two devices; `second_device` adds what `torch.cuda` says."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = _Operations()

    def __enter__(self) -> Any:
        self.operations.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self.operations.__exit__(*exception)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return _attribute(func, args)
        if name in PASSED_ON or func is torch.device:
            return func(*args, **kwargs)
        if name == "is_pinned":
            return is_pinned(args[0])
        if name in ("numpy", "__array__") and is_on_cuda(args[0]):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        if name == "tolist" and is_on_cuda(args[0]):
            self.operations.let_host_wait(name)
        if name == "one_hot" and is_on_cuda(args[0]):
            return _one_hot(*args, **kwargs)
        if name == "__setitem__" and is_on_cuda(args[0]) and isinstance(args[2], bool | int | float):
            args = *args[:2], args[0].new_full((), args[2])  # CUDA makes it on the device
        _check_generator(name, args, kwargs)
        target = _target(name, args, kwargs)
        if target is None:
            return func(*args, **kwargs)
        source = args[0] if name in ("to", "cpu", "cuda", "type_as", "as_tensor") else None
        if name in ("tensor", "as_tensor", "new_tensor") and target == CUDA and not isinstance(source, Tensor):
            self.operations.let_host_wait(name)
        is_blocking = not kwargs.get("non_blocking")
        pins = kwargs.pop("pin_memory", False) or name == "pin_memory"
        if name in ("pin_memory", "cuda"):
            func, args, kwargs = Tensor.clone, args[:1], {}
        else:
            args = [CPU if _is_device(value) else value for value in args]
            kwargs = {key: CPU if _is_device(value) else value for key, value in kwargs.items()}
        self.operations.makes_on_cuda = target == CUDA
        result = func(*args, **kwargs)
        self.operations.makes_on_cuda = False
        if isinstance(result, Tensor):
            if is_on_cuda(result) != (target == CUDA) and name != "__deepcopy__" and _shares_memory(result, args):
                result = result.clone()
            if target == CUDA:
                _place_on_cuda(result)
            result.untyped_storage().place = target  # type: ignore[attr-defined]
            if pins:
                _pin(result)
            if isinstance(source, Tensor) and is_on_cuda(source) != (target == CUDA):
                if not is_blocking and target == CPU and CUDAGraph.capturing is None:
                    _pin(result)
                with torch.no_grad(), torch._C._DisableTorchDispatch():
                    self.operations.copy(result, source, is_blocking)
        return result


def _one_hot(index: Tensor, num_classes: int = -1) -> Tensor:
    """Return what `torch.nn.functional.one_hot` makes on CUDA, where it looks at no number if it knows how many."""
    num_classes = int(index.max()) + 1 if num_classes == -1 else num_classes
    return index.new_zeros((*index.shape, num_classes)).scatter_(-1, index.unsqueeze(-1), 1)


def _attribute(func: Any, args: Any) -> Any:
    """Return an attribute of a tensor: where it lies is the mark's to say."""
    match func.__self__.__name__:
        case "device":
            return CUDA if is_on_cuda(args[0]) else func(*args)
        case "is_cuda":
            return is_on_cuda(args[0])
        case "is_cpu":
            return func(*args) and not is_on_cuda(args[0])
    return func(*args)


def _is_device(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type in ("cpu", "cuda")
    return isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda")


def _target(name: str, args: Any, kwargs: Any) -> torch.device | None:
    """Return where the result of a call belongs if its arguments say so; None leaves it to the operations."""
    for value in (*args, *kwargs.values()):
        if _is_device(value):
            return CUDA if torch.device(value).type == "cuda" else CPU
    if name in ("cpu", "pin_memory"):
        return CPU
    if name == "cuda":
        return CUDA
    if name in ("to", "type_as") and len(args) > 1 and isinstance(args[1], Tensor):
        return CUDA if is_on_cuda(args[1]) else CPU
    if name == "__deepcopy__" or name.startswith("new_"):
        return CUDA if is_on_cuda(args[0]) else CPU
    return CPU if kwargs.get("pin_memory") else None


def _shares_memory(result: Tensor, args: Any) -> bool:
    return any(x.untyped_storage()._cdata == result.untyped_storage()._cdata for x in tensors(args))


def _check_generator(name: str, args: Any, kwargs: Any) -> None:
    """Refuse random numbers for one device from the generator of the other."""
    generator = kwargs.get("generator")
    if generator is None:
        return
    if generator._cdata in CUDAGraph.left_open:
        raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
    target = _target(name, args, kwargs) or next((CUDA if is_on_cuda(x) else CPU for x in tensors(args)), CPU)
    if generator.device.type != target.type:
        raise DeviceMismatch(f"{name}: expected a generator on {target.type}, found one on {generator.device.type}")


class Generator(torch.Generator):
    """A generator that says it is on the device that it was made for; its numbers are the CPU's."""

    place: torch.device

    def __new__(cls, device: Any = "cpu") -> "Generator":
        made = super().__new__(cls, device="cpu")
        made.place = CUDA if torch.device(device).type == "cuda" else CPU
        return made

    def __reduce__(self) -> Any:
        _, _, state = super().__reduce__()
        return Generator, (self.place,), state

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place

    def get_state(self) -> Tensor:
        """Return the state, which a capture does not allow; nor does it allow another one."""
        self._refuse_in_capture("get_state")
        return super().get_state()

    def set_state(self, state: Tensor) -> "Generator":
        """Take another state."""
        self._refuse_in_capture("set_state")
        super().set_state(state)
        return self

    def manual_seed(self, seed: int) -> "Generator":
        """Begin again with a seed."""
        self._refuse_in_capture("manual_seed")
        super().manual_seed(seed)
        return self

    def _refuse_in_capture(self, name: str) -> None:
        if self.place == CUDA and CUDAGraph.capturing is not None:
            raise CaptureError(f"Cannot call CUDAGeneratorImpl::{name} during CUDA graph capture.")

    def clone_state(self) -> "Generator":
        """Return a generator with the same numbers."""
        new = Generator(self.place)
        new.set_state(self.get_state())
        return new

    def graphsafe_set_state(self, state: torch.Generator) -> None:
        """Take over the state of another generator, which is in no capture."""
        self.set_state(state.get_state())
        CUDAGraph.left_open.discard(self._cdata)


def record_stream(x: Tensor, stream: Stream) -> None:
    """Let memory be used again only after the work of another stream, too."""
    uses_of(x).home = None


@contextlib.contextmanager
def second_device() -> Iterator[SecondDevice]:
    """Let `device="cuda"` be usable: replace the modes, `torch.Generator` and what we call of `torch.cuda`."""
    mode, pools = SecondDevice(), itertools.count(1)
    Stream.begin()
    CUDAGraph.capturing, CUDAGraph.pools, CUDAGraph.in_pool, CUDAGraph.left_open = None, {}, {}, set()

    def set_sync_debug_mode(setting: str | int) -> None:
        mode.operations.waiting_is_an_error = setting in ("error", 2)

    functions: dict[str, Any] = {
        "CUDAGraph": CUDAGraph,
        "Event": Event,
        "Stream": Stream,
        "current_stream": lambda device=None: Stream.current,
        "default_generators": (Generator("cuda"),),
        "default_stream": lambda device=None: Stream.default,
        "get_sync_debug_mode": lambda: 2 if mode.operations.waiting_is_an_error else 0,
        "graph": GraphContext,
        "graph_pool_handle": lambda: (0, next(pools)),
        "is_current_stream_capturing": lambda: CUDAGraph.capturing is not None,
        "stream": StreamContext,
        "device": lambda device: contextlib.nullcontext(),
        "device_count": lambda: 1,
        "empty_cache": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "max_memory_allocated": lambda device=None: 3 * 2**20,
        "mem_get_info": lambda device=None: (2**34, 2**34),
        "memory_allocated": lambda device=None: 2 * 2**20,
        "memory_reserved": lambda device=None: 4 * 2**20,
        "set_sync_debug_mode": set_sync_debug_mode,
        "synchronize": lambda device=None: wait(),
    }
    with (
        mock.patch.multiple(torch.cuda, **functions),
        mock.patch.object(torch, "Generator", Generator),
        mock.patch.object(Tensor, "record_stream", record_stream),
        mode,
    ):
        yield mode
        wait()  # for copies whose memory was overwritten
