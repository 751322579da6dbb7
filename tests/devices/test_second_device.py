"""The second device itself: it says what CUDA says, refuses what CUDA refuses, and finds mistakes planted in rltrainer.

What CUDA does is from a device; here it is written down by hand.
"""

import copy
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


MADE_ON_CUDA: dict[str, Callable[[], Tensor]] = {
    "zeros": lambda: torch.zeros(3, device="cuda"),
    "tensor": lambda: torch.tensor([1.0], device=torch.device("cuda", 0)),
    "to": lambda: here(3).to("cuda"),
    "to as another": lambda: here(3).to(there(1)),
    "cuda": lambda: here(3).cuda(),
    "a view": lambda: there(4).view(2, 2)[0],
    "a result": lambda: there(3) * 2 + 1,
    "another dtype": lambda: there(3).double(),
    "like it": lambda: torch.zeros_like(there(3)),
    "new": lambda: there(3).new_tensor([1.0]),
    "a deep copy": lambda: copy.deepcopy(there(3)),
    "a number of the host": lambda: there(3) + torch.tensor(2.0),
    "indices of the host": lambda: there(3)[index("cpu")],
    "back and forth": lambda: there(3).cpu().to("cuda:0"),
    "random": lambda: torch.rand(3, device="cuda", generator=make_generator(1, "cuda")),
    "a gradient": lambda: (
        torch.autograd.grad(x.square().sum(), x)[0] if (x := there(3).requires_grad_()) is not None else x
    ),
    "a layer": lambda: nn.Linear(3, 2).to("cuda")(there(1, 3)),
    "in a copied layer": lambda: copy.deepcopy(nn.Linear(3, 2).to("cuda")).weight,
}


@pytest.mark.parametrize("name", MADE_ON_CUDA)
def test_a_tensor_is_on_it(name: str) -> None:
    made = MADE_ON_CUDA[name]()
    assert made.device == torch.device("cuda:0")
    assert made.is_cuda
    assert not made.is_cpu
    assert made.cpu().device == torch.device("cpu")
    assert made.cpu().is_cpu


def test_the_host_stays_the_host() -> None:
    source = here(3)
    copied = source.to("cuda")
    copied += 1
    assert source.is_cpu
    assert source.tolist() == [1.0, 1.0, 1.0]
    assert copied.tolist() == [2.0, 2.0, 2.0]
    assert torch.zeros(3).is_cpu
    assert here(3).pin_memory().is_pinned()
    assert not here(3).is_pinned()


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
WAITS_NOT: dict[str, Callable[[], object]] = {
    "to": lambda: here(2).to("cuda", non_blocking=True),
    "indices": lambda: there(2)[index("cuda")],
    "copy_": lambda: there(2).copy_(here(2), non_blocking=True),
    "arithmetic": lambda: there(2).sum() / 2,
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_waiting_is_an_error_where_it_is_forbidden(name: str) -> None:
    WAITS[name]()
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(DeviceWait):
        WAITS[name]()
    torch.cuda.set_sync_debug_mode("default")
    WAITS[name]()


@pytest.mark.parametrize("name", WAITS_NOT)
def test_not_waiting_is_none(name: str) -> None:
    torch.cuda.set_sync_debug_mode("error")
    WAITS_NOT[name]()


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
