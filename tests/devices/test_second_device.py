"""The second device itself: it says what CUDA says, refuses what CUDA refuses, and finds mistakes planted in rltrainer.

What CUDA does is from a device; here it is written down by hand.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rltrainer as rl
from rltrainer import types
from rltrainer.nets import normalizer
from rltrainer.seeding import make_generator
from tests.devices.second_device import DeviceMismatch, DeviceWait
from tests.devices.test_runs import run


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
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_is_an_error_where_it_is_forbidden(name: str) -> None:
    WAITS[name]()
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(DeviceWait):
        WAITS[name]()
    torch.cuda.set_sync_debug_mode("default")
    WAITS[name]()


# Mistakes planted in rltrainer, each of which passes on the CPU.


def test_statistics_on_another_device_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalizer, "to_device", lambda x, device: x)
    run("dqn", "cpu")
    with pytest.raises(DeviceMismatch, match="^sub: expected all tensors to be on the same device"):
        run("dqn", "cuda")


def test_a_mask_made_on_the_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = types.Rollout.ends.fget
    assert ends is not None
    monkeypatch.setattr(types.Rollout, "ends", property(lambda rollout: ends(rollout).cpu()))
    run("ppo", "cpu")
    with pytest.raises(DeviceMismatch):
        run("ppo", "cuda")


def test_noise_from_the_generator_of_the_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.algorithms.algorithm.make_generator", lambda seed, device: make_generator(seed))
    run("sac", "cpu")
    with pytest.raises(DeviceMismatch, match="expected a generator on cuda, found one on cpu"):
        run("sac", "cuda")


def test_a_batch_that_is_not_copied_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rl.Transitions, "to", lambda transitions, device: transitions)
    with pytest.raises(DeviceMismatch):
        run("dqn", "cuda", buffer_device="cpu")
