"""The memory that a buffer needs, asked for before it is allocated and not hours later."""

import os

import torch

from rltrainer.errors import ReplayBufferError, field_error_text


def check_fits(owner: str, field: str, value: int, needed: int, device: torch.device) -> None:
    """Compare what is needed with what the device has left.

    Args:
        owner: the class whose field decides the size.
        field: that field.
        value: its value.
        needed: bytes.
        device: where they would be taken.

    Raises:
        ReplayBufferError: there is less; the text names both amounts.
    """
    available = available_bytes(device)
    if available is not None and needed > available:
        rule = f"needs {_in_gb(needed)} of memory on {device}, {_in_gb(available)} are available"
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
        return _physical_bytes()


def _physical_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _in_gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3g} GB"
