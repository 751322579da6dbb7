"""Devices: their names as users write them, which ones exist here, and the rule behind "auto"."""

import contextlib
import logging
import re
from typing import Annotated, Any

import gymnasium as gym
import torch
from torch import nn

from rltrainer.errors import ParamsError
from rltrainer.spaces import has_images
from rltrainer.validation.field_rules import Rule, checked


def _meant(value: Any) -> str:
    name = f"cuda:{value}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    name = "cuda" if name.lower() in ("gpu", "gpus", "nvidia") else name.lower()
    return f"Write {name!r}." if _is_name(name) else ""


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", value) is not None


AnyDevice = Annotated[str, Rule("'auto', 'cpu', 'cuda', or one GPU by its number, such as 'cuda:1'", _is_name, _meant)]

LARGE = 50_000
"""Parameters from which "auto" takes a GPU. The threshold lies between two runs on an H100 on 2026-11-23: SAC with
256-256 networks (some 200,000 parameters) made 371 env steps a second, and 267 where it acted on the CPU; DQN with
64-64 networks (some 5,000) made 630, and 693 on the CPU."""


def require_device(owner: str, device: torch.device | str) -> torch.device:
    """Return the device; if PyTorch cannot use it here, a `ParamsError` names the devices that exist."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        found = cuda_devices()
        hint = f"There is {', '.join(['cpu', *found])}{'' if found else '; PyTorch sees no CUDA device'}."
        raise ParamsError.about(owner, "device", "must be a device that PyTorch can use here", device, hint) from error


def cuda_devices() -> list[str]:
    """Return the CUDA devices with their names: "cuda:0 (NVIDIA H100)"."""
    if not torch.cuda.is_available():
        return []
    return [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())]


def choose_device(
    network: nn.Module | None, observation_space: gym.Space[Any] | None, backend: str = "auto"
) -> tuple[str, str]:
    """Return the device that "auto" stands for, and the reason: a rule of the program and the kind of machine."""
    if not torch.cuda.is_available():
        return "cpu", "PyTorch sees no CUDA device"
    if backend == "tensor":
        return "cuda", "envs return tensors"
    if observation_space is not None and has_images(observation_space):
        return "cuda", "observations are images"
    num_parameters = 0 if network is None else sum(parameter.numel() for parameter in network.parameters())
    if num_parameters >= LARGE:
        return "cuda", f"{num_parameters:,} parameters are at least {LARGE:,}"
    return "cpu", f"{num_parameters:,} parameters are fewer than {LARGE:,}"


def resolve_device(
    owner: str,
    device: torch.device | str,
    network: nn.Module | None,
    observation_space: gym.Space[Any] | None,
    backend: str = "auto",
    earlier: str | None = None,
) -> torch.device:
    """Return a device by its name, or raise a `ParamsError`; log what "auto" resolves to.

    Args:
        owner: for error texts.
        device: as the user wrote it.
        network: all networks that train or act; None if they are made later.
        observation_space: of one env; None if it is not known yet.
        backend: the way envs are stepped; see `make_vec`.
        earlier: the choice of the run to resume, from a file; "auto" keeps it if that device exists.
    """
    if device != "auto":
        return require_device(owner, device)
    name, why = choose_device(network, observation_space, backend)
    if earlier is not None:
        with contextlib.suppress(ParamsError):  # it is gone, or the file is damaged
            require_device(owner, checked(owner, "device", earlier, AnyDevice))
            name, why = earlier, "the run began there"
    logging.getLogger("rltrainer").info("device='auto': %s (%s)", name, why)
    return require_device(owner, name)
