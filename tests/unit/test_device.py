"""Which device a name means, what "auto" comes to and why, and what is said of a device that is absent."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rltrainer.device import AnyDevice, choose_device, cuda_devices, require_device, resolve_device
from rltrainer.errors import ParamsError
from rltrainer.validation.field_rules import checked

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
SMALL, LARGE = nn.Linear(9, 4999), nn.Linear(9, 5000)
"""Networks of 49,990 and of 50,000 parameters: a weight of nine numbers and a bias for each output."""


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch list two GPUs, none of which can be used."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: ["NVIDIA H100", "Tesla T4"][index])


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda", "cuda:0", "cuda:17"])
def test_names(name: str) -> None:
    assert checked("Recipe", "device", name, AnyDevice) == name


def test_an_absent_device_without_a_gpu(no_gpu: None) -> None:
    with pytest.raises(ParamsError) as caught:
        require_device("Recipe", "cuda:1")
    rule = "Recipe.device: must be a device that PyTorch can use here; got 'cuda:1' (str)"
    assert str(caught.value) == f"{rule}. There is cpu; PyTorch sees no CUDA device."
    assert cuda_devices() == []


def test_an_absent_device_beside_others(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(*size: int, device: Any) -> None:
        raise RuntimeError("CUDA error: invalid device ordinal")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(ParamsError) as caught:
        require_device("Recipe", "cuda:2")
    rule = "Recipe.device: must be a device that PyTorch can use here; got 'cuda:2' (str)"
    assert str(caught.value) == f"{rule}. There is cpu, cuda:0 (NVIDIA H100), cuda:1 (Tesla T4)."


def test_a_device_that_is_there() -> None:
    assert require_device("load", "cpu") == require_device("load", torch.device("cpu")) == torch.device("cpu")


@pytest.mark.parametrize(("network", "space", "backend", "expected"), [
    (SMALL, VECTOR, "auto", ("cpu", "49,990 parameters are fewer than 50,000")),
    (LARGE, VECTOR, "auto", ("cuda", "50,000 parameters are at least 50,000")),
    (SMALL, IMAGE, "auto", ("cuda", "observations are images")),
    (SMALL, gym.spaces.Dict(a=VECTOR, b=gym.spaces.Tuple((IMAGE,))), "sync", ("cuda", "observations are images")),
    (SMALL, VECTOR, "tensor", ("cuda", "envs return tensors")),
    (None, None, "tensor", ("cuda", "envs return tensors")),
])  # fmt: skip
def test_auto(network: Any, space: Any, backend: str, expected: tuple[str, str], two_gpus: None) -> None:
    assert choose_device(network, space, backend) == expected


@pytest.mark.parametrize("backend", ["auto", "tensor"])
def test_auto_without_a_gpu(backend: str, no_gpu: None) -> None:
    assert choose_device(LARGE, IMAGE, backend) == ("cpu", "PyTorch sees no CUDA device")


def resolved(device: str, caplog: pytest.LogCaptureFixture, earlier: str | None = None) -> tuple[str, list[str]]:
    with caplog.at_level(logging.INFO, "rltrainer"):
        found = resolve_device("Recipe", device, SMALL, IMAGE, earlier=earlier)
    return str(found), caplog.messages


def test_only_auto_is_logged(no_gpu: None, caplog: pytest.LogCaptureFixture) -> None:
    assert resolved("cpu", caplog) == ("cpu", [])
    assert resolved("auto", caplog) == ("cpu", ["device='auto': cpu (PyTorch sees no CUDA device)"])


def test_a_resumed_run_keeps_its_device(two_gpus: None, caplog: pytest.LogCaptureFixture) -> None:
    assert resolved("auto", caplog, "cpu") == ("cpu", ["device='auto': cpu (the run began there)"])


@pytest.mark.parametrize("earlier", ["cuda:1", "auto", "meta", "nonsense", ""])
def test_a_device_that_is_gone_is_chosen_again(earlier: str, no_gpu: None, caplog: pytest.LogCaptureFixture) -> None:
    assert resolved("auto", caplog, earlier) == ("cpu", ["device='auto': cpu (PyTorch sees no CUDA device)"])
    with pytest.raises(ParamsError, match="PyTorch sees no CUDA device"):
        resolve_device("Recipe", "cuda", SMALL, IMAGE, earlier="cpu")  # a name is kept to
