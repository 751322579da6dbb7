"""The second device itself: it says what CUDA says, refuses what CUDA refuses, and finds mistakes planted in rltrainer.

What CUDA does is from a device; here it is written down by hand.
"""

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
from tests.devices import test_overlap
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
    "numpy": lambda: there(2).numpy(),
    "array": lambda: np.asarray(there(2)),
    "generator in place": lambda: here(2).normal_(generator=make_generator(1, "cuda")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_mixture_is_refused(name: str) -> None:
    text = "on the same device|a generator on|can't convert cuda:0 device type tensor to numpy"
    with pytest.raises((DeviceMismatch, TypeError), match=text):
        REFUSED[name]()


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


NOT_CAPTURED: dict[str, Callable[[], object]] = WAITS | {
    "synchronize": lambda: torch.cuda.synchronize(),
    "memory of the host": lambda: there(2).copy_(here(2), non_blocking=True),
    "pinned memory that is not there before": lambda: there(2).to("cpu", non_blocking=True),
    "index of the host": lambda: there(2)[index("cpu")],
    "generator": lambda: torch.rand(2, device="cuda", generator=make_generator(1, "cuda")),
    "state of a generator": lambda: torch.Generator("cuda").get_state(),
    "seed of a generator": lambda: torch.Generator("cuda").manual_seed(1),
}


def captured(function: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, torch.cuda.graph_pool_handle(), torch.cuda.Stream()):
        function()
    return graph


@pytest.mark.parametrize("name", NOT_CAPTURED)
def test_waiting_is_an_error_where_it_is_forbidden_and_in_a_capture(name: str) -> None:
    call = NOT_CAPTURED[name]
    call()
    if name in WAITS:
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(DeviceWait):
            call()
        torch.cuda.set_sync_debug_mode("default")
        call()
    text = "operation not permitted when stream is capturing|not in capture mode|during CUDA graph capture"
    with pytest.raises(RuntimeError, match="operation failed due to a previous error during capture") as error:
        captured(call)
    assert re.search(text, str(error.value.__context__))
    assert not torch.cuda.is_current_stream_capturing()
    captured(lambda: there(2))


def test_pinned_memory_shows_that_a_copy_is_under_way() -> None:
    x, pinned = there(2), torch.zeros(2).pin_memory()
    down = captured(lambda: pinned.copy_(x, non_blocking=True))
    for download in (lambda: pinned.copy_(x, non_blocking=True), down.replay):
        download()
        assert pinned.isnan().all()
        torch.cuda.synchronize()
        assert pinned.tolist() == [1.0, 1.0]
    x.copy_(pinned, non_blocking=True)
    pinned.fill_(2.0)
    with pytest.raises(StreamRace, match="pinned memory was overwritten"):
        torch.cuda.synchronize()


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


@pytest.mark.parametrize("missing", ["wait_stream", "wait_event"])
def test_streams_that_do_not_wait_for_each_other_are_found(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test_overlap.test_streams_wait_for_each_other()
    monkeypatch.setattr(torch.cuda.Stream, missing, lambda stream, other: None)
    with pytest.raises(StreamRace, match="memory is (written|read) in a stream while another stream uses it"):
        test_overlap.test_streams_wait_for_each_other()


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
