"""The memory that a buffer needs, compared with the free memory before any of it is allocated."""

import contextlib
import logging
import os
from pathlib import Path

import torch

from rltrainer.errors import ReplayBufferError

# Linux lists here the limits of groups of processes, such as containers, this process's groups, and the memory.
CGROUPS, OWN_GROUPS, MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/meminfo")
# The files of a group in versions 1 and 2 of cgroups: its limit, its usage, and in its statistics the pages of files.
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")


def check_fits(owner: str, field: str, value: int, needed: int, device: torch.device) -> None:
    """Raise a `ReplayBufferError` about the owner's field if the device has fewer free bytes than are needed."""
    available = available_bytes(device)
    if available is not None and needed > available:
        rule = f"needs {needed / 1e9:.3g} GB of memory on {device}, {available / 1e9:.3g} GB are available"
        raise ReplayBufferError.about(owner, field, rule, value, "Make it smaller.")


def device_for_data(nbytes: int, device: torch.device) -> torch.device:
    """Return the device if data of so many bytes takes at most half of its free memory, else the CPU; log the choice.

    The other half is left to networks, optimizers, batches and CUDA graphs.
    """
    if device.type == "cpu":
        return device
    available = available_bytes(device)
    chosen = device if available is None or 2 * nbytes <= available else torch.device("cpu")
    free = "" if available is None else f"; {available / 1e9:.3g} GB are free on {device}, of which it may take half"
    logging.getLogger("rltrainer").info("replay buffer: %.3g GB on %s%s", nbytes / 1e9, chosen, free)
    return chosen


def available_bytes(device: torch.device) -> int | None:
    """Return the free bytes of a device, on the CPU within the limits of cgroups; None if they are not reported."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    return min((size for size in (_of_machine(), *_of_cgroups()) if size is not None), default=None)


def _of_machine() -> int | None:
    with contextlib.suppress(OSError, KeyError, ValueError):
        fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(AttributeError, ValueError, OSError):  # all that is installed
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_cgroups() -> list[int]:
    """Return the bytes that each limit above this process leaves: its group's, and the groups' around it."""
    try:
        lines = [line.split(":", 2) for line in OWN_GROUPS.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, name in (line for line in lines if len(line) == 3):
        if controllers in ("", "memory") or "memory" in controllers.split(","):
            top, files = (CGROUPS / "memory", _VERSION_1) if controllers else (CGROUPS, _VERSION_2)
            group = top / name.lstrip("/")
            # In a container the path may be the host's, of which only the end is visible, as the top.
            groups = [each for each in (group, *group.parents) if each == top or top in each.parents]
            found += [size for each in groups if (size := _left(each, *files)) is not None]
    return found


def _left(group: Path, limit: str, usage: str, cache: str) -> int | None:
    """Return the bytes that a group may still take, pages of files that give way included; None without a limit."""
    with contextlib.suppress(OSError, ValueError, KeyError):  # without a limit it says "max", which is no number
        most, used = int((group / limit).read_text()), int((group / usage).read_text())
        stat = dict(line.split(" ", 1) for line in (group / "memory.stat").read_text().splitlines())
        return max(most - used + int(stat[cache]), 0)
    return None
