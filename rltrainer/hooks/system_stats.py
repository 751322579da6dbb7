"""The load of the machine, measured in a thread beside the run."""

import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rltrainer.errors import MissingExtraError, ParamsError, field_error_text, install_extra
from rltrainer.functional.means import Part, floats, gather, merge
from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook
from rltrainer.interval import Every, as_every
from rltrainer.validation.field_rules import Flag, checked


class SystemStats(TrainerHook):
    """Logs how busy processor, memory and GPUs are, measured by a thread that ends with the run.

    `cpu_percent`, `memory_percent` and `process_memory_gb` come from `/proc`, or from psutil where there is none; of
    each GPU `gpu0_percent`, `gpu0_memory_gb` and `gpu0_temperature` from `nvidia-smi`, if it is there.

    Args:
        cpu_every: seconds between measurements of processor and memory.
        gpu_every: seconds between those of the GPUs.
        cpu_once: measure processor and memory only once, after the first interval.
        gpu_once: the same for the GPUs.

    Raises:
        ParamsError: an argument breaks its rule.
        MissingExtraError: when the run begins: there is neither `/proc` nor psutil.
    """

    def __init__(
        self, cpu_every: int | Every = 1, gpu_every: int | Every = 10, *, cpu_once: bool = False, gpu_once: bool = False
    ) -> None:
        owner = "SystemStats"
        self.cpu_every = _seconds(owner, cpu_every, "cpu_every")
        self.gpu_every = _seconds(owner, gpu_every, "gpu_every")
        self.cpu_once = checked(owner, "cpu_once", cpu_once, Flag)
        self.gpu_once = checked(owner, "gpu_once", gpu_once, Flag)
        self._watch: _Watch | None = None

    def setup(self, ctx: TrainerContext) -> None:
        """Start the thread."""
        probes = [
            _Probe(CpuProbe(), self.cpu_every.n, self.cpu_once),
            _Probe(GpuProbe(), self.gpu_every.n, self.gpu_once),
        ]
        self._watch = _Watch(probes)
        self._watch.start()

    def post_steps(self, ctx: TrainerContext) -> None:
        """Log what was measured since the last training step."""
        measured = None if self._watch is None else self._watch.take()
        if measured is not None:
            ctx.log(measured)

    def shutdown(self, ctx: TrainerContext) -> None:
        """End the thread."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None


class _Probe:
    """A measurement, when it is due next, and whether that is the last time."""

    def __init__(self, measure: Callable[[], dict[str, float]], interval: float, is_once: bool) -> None:
        self.measure, self.interval, self.is_once = measure, interval, is_once
        self.due = time.monotonic() + interval


class _Watch(threading.Thread):
    """Measures until it is told to stop."""

    def __init__(self, probes: list[_Probe]) -> None:
        super().__init__(name="rltrainer-system-stats", daemon=True)
        self._probes, self._ends, self._lock = probes, threading.Event(), threading.Lock()
        self._gathered: list[Part] = []

    def run(self) -> None:
        """Measure whatever is due, one after the other."""
        while self._probes:
            probe = min(self._probes, key=lambda each: each.due)
            if self._ends.wait(max(probe.due - time.monotonic(), 0)):
                return
            try:
                measured = probe.measure()
            except Exception as error:  # a driver that is gone must not end training
                text = "SystemStats: a measurement failed and is left out from now on (%s: %s)"
                logging.getLogger("rltrainer").warning(text, type(error).__name__, error)
                measured, probe.is_once = {}, True
            with self._lock:
                gather(self._gathered, Part(dict(measured)), merge)
            probe.due = time.monotonic() + probe.interval
            if probe.is_once:
                self._probes.remove(probe)

    def take(self) -> dict[str, float] | None:
        """Return the means of what was measured since the last time, if anything was."""
        if not self._gathered:  # most often: as many training steps as env steps fit between two measurements
            return None
        with self._lock:
            gathered, self._gathered = self._gathered, []
        return floats(merge(gathered).values)

    def stop(self) -> None:
        """End the thread, and wait for its end: at most a measurement's time."""
        self._ends.set()
        self.join(timeout=10)


def _seconds(owner: str, every: int | Every, field: str) -> Every:
    every = as_every(owner, every, "second", field)
    if every.unit != "second":
        raise ParamsError(field_error_text(owner, field, "must be in seconds", every))
    return every


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
