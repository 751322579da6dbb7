"""The memory that a buffer needs, asked for before it is allocated and not hours later."""

import os

import torch

from rltrainer.errors import ReplayBufferError, field_error_text


def check_fits(owner: str, field: str, value: int, needed: int, device: torch.device) -> None:
    """Compare the bytes that are needed with what the device has left.

    Raises:
        ReplayBufferError: there is less; the text names both amounts, and the owner's field that decides.
    """
    available = available_bytes(device)
    if available is not None and needed > available:
        rule = f"needs {needed / 1e9:.3g} GB of memory on {device}, {available / 1e9:.3g} GB are available"
        raise ReplayBufferError(field_error_text(owner, field, rule, value, "Make it smaller."))


def available_bytes(device: torch.device) -> int | None:
    """Return the free bytes of a device, or None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:  # what is installed
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
