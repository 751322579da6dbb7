"""Measurements of the machine: how busy processor, memory and GPUs are, by names of a log."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from rltrainer.errors import MissingExtraError, install_extra

PROC = Path("/proc")
GB = 1e9
GPU_FIELDS = {"utilization.gpu": "percent", "memory.used": "memory_gb", "temperature.gpu": "temperature"}
MIB_IN_GB = 2**20 / GB


class CpuProbe:
    """Measures the processor and memory, from `/proc`, and where there is none from psutil.

    `cpu_percent` is of all cores since the last measurement, `memory_percent` of the machine, `process_memory_gb` what
    this process holds.

    Raises:
        MissingExtraError: there is neither.
    """

    def __init__(self) -> None:
        self._psutil: Any = None
        if not (PROC / "stat").exists():
            try:
                import psutil
            except ImportError as error:
                text = f"SystemStats: needs psutil where there is no /proc: {error}. {install_extra('system')}"
                raise MissingExtraError(text) from error
            self._psutil = psutil
        self._busy, self._total = self._times()

    def __call__(self) -> dict[str, float]:
        """Return the measurements."""
        busy, total = self._times()
        percent = 100 * (busy - self._busy) / (total - self._total) if total > self._total else 0.0
        self._busy, self._total = busy, total
        used, held = self._memory()
        return {"cpu_percent": percent, "memory_percent": 100 * used, "process_memory_gb": held / GB}

    def _times(self) -> tuple[float, float]:
        """Return the seconds, or ticks, that all cores were busy, and those there were."""
        if self._psutil is not None:
            times = self._psutil.cpu_times()
            return sum(times) - times.idle - getattr(times, "iowait", 0.0), sum(times)
        # user nice system idle iowait irq softirq steal; what follows is counted in the first two already.
        ticks = [float(text) for text in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)

    def _memory(self) -> tuple[float, float]:
        """Return the share of memory in use, and the bytes of this process."""
        if self._psutil is not None:
            return self._psutil.virtual_memory().percent / 100, self._psutil.Process().memory_info().rss
        lines = (line.split() for line in (PROC / "meminfo").read_text().splitlines())
        sizes = {fields[0]: float(fields[1]) for fields in lines}
        held = int((PROC / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 1 - sizes["MemAvailable:"] / sizes["MemTotal:"], held


class GpuProbe:
    """Measures of each GPU that `nvidia-smi` tells of `gpu0_percent`, `gpu0_memory_gb` and `gpu0_temperature`.

    Nothing where there is no `nvidia-smi`; what a GPU does not tell is left out.
    """

    def __init__(self) -> None:
        self._program = shutil.which("nvidia-smi")

    def __call__(self) -> dict[str, float]:
        """Return the measurements; takes some tenths of a second."""
        if self._program is None:
            return {}
        command = [self._program, f"--query-gpu=index,{','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, stdin=subprocess.DEVNULL)
        return _gpu_numbers(run.stdout)


def _gpu_numbers(text: str) -> dict[str, float]:
    """Return the numbers in lines like `0, 35, 1024, 61`, which may be `[N/A]`."""
    values = {}
    for index, *fields in (line.split(", ") for line in text.strip().splitlines()):
        for name, field in zip(GPU_FIELDS.values(), fields, strict=True):
            if field.replace(".", "", 1).isdecimal():
                values[f"gpu{index}_{name}"] = float(field) * (MIB_IN_GB if name == "memory_gb" else 1)
    return values
