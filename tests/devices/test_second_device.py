"""The second device itself: it says what CUDA says, refuses what CUDA refuses, and finds mistakes planted in rltrainer.

What CUDA does is from a device; here it is written down by hand.
"""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rltrainer as rl
from rltrainer import schedules, types
from rltrainer.algorithms import algorithm
from rltrainer.nets import normalizer
from rltrainer.schedules import value_at
from rltrainer.seeding import make_generator
from tests.contract.test_all_algorithms import assert_same_state
from tests.devices.cuda_graphs import FreedMemory
from tests.devices.second_device import DeviceMismatch, DeviceWait
from tests.devices.streams import StreamRace
from tests.devices.test_runs import GRAPH, made, run


def here(*shape: int) -> Tensor:
    return torch.ones(shape)


def there(*shape: int) -> Tensor:
    return torch.ones(shape, device="cuda")


def index(device: str) -> Tensor:
    return torch.zeros(2, dtype=torch.int64, device=device)


REFUSED: dict[str, Callable[[], object]] = {
    "add": lambda: here(2) + there(2),
    "add in place": lambda: there(2).add_(here(2)),
    "into a number of the host": lambda: here().add_(there()),
    "matmul": lambda: here(2, 2) @ there(2, 2),
    "linear": lambda: nn.Linear(3, 2)(there(1, 3)),
    "where": lambda: torch.where(here(2) > 0, there(2), there(2)),
    "masked_fill": lambda: there(2).masked_fill(here(2) > 0, 0.0),
    "cat": lambda: torch.cat([here(1), there(1)]),
    "stack of numbers": lambda: torch.stack([here(), there()]),
    "gather": lambda: there(2).gather(0, index("cpu")),
    "index_select": lambda: there(2).index_select(0, index("cpu")),
    "indices of the device": lambda: here(2)[index("cuda")],
    "values of the host": lambda: there(2).index_put_((index("cuda"),), here(2)),
    "generator": lambda: torch.rand(2, device="cuda", generator=make_generator(1)),
    "generator in place": lambda: here(2).normal_(generator=make_generator(1, "cuda")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_mixture_is_refused(name: str) -> None:
    with pytest.raises(DeviceMismatch):
        REFUSED[name]()


@pytest.mark.parametrize("convert", [Tensor.numpy, np.asarray])
def test_numpy_takes_none_of_its_tensors(convert: Callable[[Tensor], object]) -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        convert(there(2))


WAITS: dict[str, Callable[[], object]] = {
    "item": lambda: there().item(),
    "bool": lambda: bool(there()),
    "cpu": lambda: there(2).cpu(),
    "to": lambda: here(2).to("cuda"),
    "tensor": lambda: torch.tensor([1.0], device="cuda"),
    "nonzero": lambda: there(2).nonzero(),
    "a mask": lambda: there(2)[there(2) > 0],
    "copy_": lambda: there(2).copy_(here(2)),
    "tolist": lambda: there(2).tolist(),
    "list as index": lambda: there(2)[[0, 1]],
    "repeat_interleave": lambda: there(2).repeat_interleave(index("cuda")),
    "one_hot of any size": lambda: nn.functional.one_hot(index("cuda")),
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_is_an_error_where_it_is_forbidden(name: str) -> None:
    WAITS[name]()
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(DeviceWait):
        WAITS[name]()
    torch.cuda.set_sync_debug_mode("default")
    WAITS[name]()


# CUDA graphs


def captured(function: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, torch.cuda.graph_pool_handle(), torch.cuda.Stream()):
        function()
    return graph


def test_a_graph_reads_and_writes_the_same_memory_at_each_replay() -> None:
    x, total, outputs = there(2), torch.zeros(2, device="cuda"), []
    graph = captured(lambda: outputs.append(total.add_(x).mul(10.0).view(2, 1)))
    assert total.tolist() == [0.0, 0.0]  # a capture changes nothing
    assert outputs[0].isnan().all()  # and makes nothing
    graph.replay()
    assert (total.tolist(), outputs[0].tolist()) == ([1.0, 1.0], [[10.0], [10.0]])
    x.fill_(2.0)
    graph.replay()
    assert (total.tolist(), outputs[0].tolist()) == ([3.0, 3.0], [[30.0], [30.0]])


def test_numbers_of_the_host_are_those_of_the_capture() -> None:
    x, outputs, number, on_host = there(1), [], [2.0], torch.tensor(3.0)
    graph = captured(lambda: outputs.append(x * number[0] + on_host))
    number[0], _ = 5.0, on_host.fill_(7.0)
    graph.replay()
    assert outputs[0].tolist() == [5.0]


NOT_CAPTURED: dict[str, Callable[[], object]] = WAITS | {
    "synchronize": lambda: torch.cuda.synchronize(),
    "memory of the host": lambda: there(2).copy_(here(2), non_blocking=True),
    "pinned memory that is not there before": lambda: there(2).to("cpu", non_blocking=True),
    "index of the host": lambda: there(2)[index("cpu")],
    "generator": lambda: torch.rand(2, device="cuda", generator=make_generator(1, "cuda")),
    "state of a generator": lambda: torch.Generator("cuda").get_state(),
    "seed of a generator": lambda: torch.Generator("cuda").manual_seed(1),
}


@pytest.mark.parametrize("name", NOT_CAPTURED)
def test_what_cannot_be_captured(name: str) -> None:
    NOT_CAPTURED[name]()
    text = "operation not permitted when stream is capturing|not in capture mode|during CUDA graph capture"
    with pytest.raises(RuntimeError, match="operation failed due to a previous error during capture") as error:
        captured(NOT_CAPTURED[name])
    assert re.search(text, str(error.value.__context__))
    assert not torch.cuda.is_current_stream_capturing()
    captured(lambda: there(2))


def test_a_graph_does_not_keep_what_it_reads() -> None:
    x, others = there(2), [there(2)]
    graph = captured(lambda: x.add_(others[0][1:]))
    graph.replay()
    others.clear()
    with pytest.raises(FreedMemory, match="freed since its capture"):
        graph.replay()


# Pinned memory


def test_the_host_sees_a_copy_that_it_waited_for() -> None:
    x, pinned = there(2), torch.zeros(2).pin_memory()
    for wait in (torch.cuda.synchronize, torch.cuda.current_stream().synchronize, lambda: x[0].item()):
        pinned.copy_(x, non_blocking=True)
        assert pinned.isnan().all()
        wait()
        assert pinned.tolist() == [1.0, 1.0]
    event = torch.cuda.Event()
    event.record()
    later = x.to("cpu", non_blocking=True)
    event.synchronize()
    assert later.isnan().all()
    event.record()
    assert not event.query()  # the host is ahead of the device
    assert event.query()
    assert later.tolist() == [1.0, 1.0]


def test_a_copy_in_another_stream() -> None:
    x, pinned, stream = there(2), torch.zeros(2).pin_memory(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        pinned.copy_(x, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    assert pinned.isnan().all()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.current_stream().synchronize()
    assert pinned.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("by", [lambda x: x, lambda x: torch.from_numpy(x.numpy())])
def test_memory_that_is_overwritten_while_it_is_read(by: Callable[[Tensor], Tensor]) -> None:
    x, pinned = there(2), torch.zeros(2).pin_memory()
    assert by(pinned).is_pinned()
    x.copy_(by(pinned), non_blocking=True)
    pinned.fill_(1.0)
    with pytest.raises(StreamRace, match="pinned memory was overwritten"):
        torch.cuda.synchronize()


def test_copies_in_a_graph() -> None:
    x, up, down = there(2), torch.zeros(2).pin_memory(), torch.zeros(2).pin_memory()

    def step() -> None:
        x.copy_(up, non_blocking=True)
        down.copy_(x + 1.0, non_blocking=True)

    graph = captured(step)
    for number in (3.0, 4.0):
        up.fill_(number)
        graph.replay()
        assert down.isnan().all()
        torch.cuda.synchronize()
        assert down.tolist() == [number + 1.0] * 2


# Streams


def in_stream(function: Callable[[], object]) -> torch.cuda.Stream:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    return stream


def recorded(stream: torch.cuda.Stream) -> None:
    torch.cuda.current_stream().wait_event(stream.record_event())


ORDERED: dict[str, Callable[[torch.cuda.Stream], object]] = {
    "wait_stream": lambda stream: torch.cuda.current_stream().wait_stream(stream),
    "wait_event": recorded,
    "host": lambda stream: stream.synchronize(),
    "host, event": lambda stream: stream.record_event().synchronize(),
    "host, all": lambda stream: torch.cuda.synchronize(),
}
USED_TWICE: dict[str, tuple[Callable[[Tensor], object], Callable[[Tensor], object]]] = {
    "write, read": (lambda x: x.add_(1.0), lambda x: x + 1.0),
    "read, write": (lambda x: x + 1.0, lambda x: x[0].add_(1.0)),
    "write, write": (lambda x: x.add_(1.0), Tensor.zero_),
    "write, download": (lambda x: x.add_(1.0), Tensor.cpu),
    "read, upload": (lambda x: x + 1.0, lambda x: x.copy_(here(2))),
}


@pytest.mark.parametrize("name", USED_TWICE)
def test_streams_that_do_not_wait_for_each_other(name: str) -> None:
    first, second = USED_TWICE[name]
    for wait in ORDERED.values():
        x = there(2)
        wait(in_stream(lambda x=x: first(x)))
        second(x)
    x = there(2)
    in_stream(lambda: first(x))
    with pytest.raises(StreamRace, match="memory is (written|read) in a stream while another stream uses it"):
        second(x)


def test_a_new_stream_waits_for_what_was_there_before() -> None:
    x = there(2)
    with pytest.raises(StreamRace), torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1.0)


@pytest.mark.parametrize("care", ["none", "record_stream", "wait_stream"])
def test_memory_that_is_freed_while_another_stream_reads_it(care: str) -> None:
    stream = torch.cuda.Stream()
    tensors = [there(2)]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tensors[0].sum()
    if care == "record_stream":
        tensors[0].record_stream(stream)
    tensors.clear()
    if care == "wait_stream":
        torch.cuda.current_stream().wait_stream(stream)
    with pytest.raises(StreamRace, match="record_stream is missing") if care == "none" else contextlib.nullcontext():
        there(2)


@pytest.mark.parametrize("shares_pool", [False, True])
def test_graphs_of_one_pool_take_turns(shares_pool: bool) -> None:
    x, y = there(2), there(2)
    graphs = []
    for tensor in (x, y):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=graphs[0].pool() if graphs and shares_pool else None):
            tensor.add_(1.0)
        graphs.append(graph)
    in_stream(graphs[0].replay)
    with pytest.raises(StreamRace):
        x.sum()
    with pytest.raises(StreamRace) if shares_pool else contextlib.nullcontext():
        graphs[1].replay()


# Mistakes planted in rltrainer, each of which passes on the CPU.

ENDS: Any = types.Rollout.ends
PLANTED: dict[str, tuple[str, Any, str, Any, str]] = {
    "statistics on another device": (
        "dqn", normalizer, "to_device", lambda x, device: x, "^sub: expected all tensors to be on the same device"
    ),
    "a mask made on the host": ("ppo", types.Rollout, "ends", property(lambda it: ENDS.fget(it).cpu()), "cpu"),
    "noise from the generator of the host": (
        "sac", algorithm, "make_generator", lambda seed, device: make_generator(seed),
        "expected a generator on cuda, found one on cpu",
    ),
    "a batch that is not copied": ("dqn", rl.Transitions, "to", lambda transitions, device: transitions, "cpu"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", PLANTED)
def test_what_mixes_devices_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, owner, attribute, value, text = PLANTED[mistake]
    monkeypatch.setattr(owner, attribute, value)
    run(name, "cpu")
    with pytest.raises(DeviceMismatch, match=text):
        run(name, "cuda", buffer_device="cpu" if owner is rl.Transitions else None)


# A graph keeps the numbers that Python gave it, and reads memory where it was: another number each time is a mistake.

VALUE = {
    "a number": lambda scheduled, value: value,
    "a tensor of the host": lambda scheduled, value: torch.tensor(value),
    "another tensor": lambda scheduled, value: torch.full_like(scheduled.value, value),
}


def entropy_falls(**params: object) -> object:
    trainer = made("impala", "cuda", **params)
    trainer.algorithm.entropy_coef.schedule = rl.LinearSchedule(1.0, 0.0)
    trainer.run()
    return trainer.algorithm


@pytest.mark.full
def test_a_scheduled_value_in_a_graph_is_right() -> None:
    assert_same_state(entropy_falls(runtime=GRAPH), entropy_falls())


FULL = ("a tensor of the host", "another tensor")


@pytest.mark.parametrize("kind", ["a number", *(pytest.param(kind, marks=pytest.mark.full) for kind in FULL)])
def test_a_scheduled_value_in_a_graph_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def set_progress(scheduled: rl.ScheduledValue, progress: float) -> None:
        if callable(scheduled.schedule):
            scheduled.value = VALUE[kind](scheduled, float(value_at(scheduled.schedule, progress)))

    monkeypatch.setattr(schedules.ScheduledValue, "set_progress", set_progress)
    with pytest.raises(FreedMemory if kind == "another tensor" else AssertionError):
        assert_same_state(entropy_falls(runtime=GRAPH), entropy_falls())
