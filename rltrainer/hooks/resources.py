"""Hooks about the resources of a run: its seconds, the load of the machine, the memory of the GPU."""

import dataclasses
import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch

from rltrainer.collect import CollectStats
from rltrainer.errors import MissingExtraError, install_extra
from rltrainer.functional.means import Part, floats, gather, merge
from rltrainer.hooks.hook import TrainerContext, TrainerHook
from rltrainer.interval import Every, as_every
from rltrainer.types import State
from rltrainer.validation.field_rules import Flag, NonNegativeFloat, Rule, checked

EverySeconds = Annotated[Every, Rule("an Every in seconds", lambda v: isinstance(v, Every) and v.unit == "second")]
PROC = Path("/proc")
GB = 1e9
GPU_FIELDS = {"utilization.gpu": "percent", "memory.used": "memory_gb", "temperature.gpu": "temperature"}
MIB_IN_GB = 2**20 / GB


@dataclasses.dataclass
class Seconds:
    """Seconds since the last log; their difference from `total` went into callbacks, logs and other hooks."""

    collect: NonNegativeFloat = 0.0
    update: NonNegativeFloat = 0.0
    test: NonNegativeFloat = 0.0
    total: NonNegativeFloat = 0.0


class LogTiming(TrainerHook):
    """Logs the seconds of each interval by their use: `time_collect`, `time_update`, `time_test`, `time_other`.

    An update counts from `pre_optim_steps` to `post_steps`, with the hooks in between. A GPU is still busy then: its
    remaining time counts to whatever waits for it.
    """

    state_class = Seconds

    def __init__(self, every: int | Every = 100) -> None:
        self.every: Every = as_every("LogTiming", every)
        self.state = Seconds()
        self._last_time: float | None = None
        self._begin_time: float | None = None

    def setup(self, ctx: TrainerContext) -> None:
        """Start to measure."""
        self._last_time, self._begin_time = time.perf_counter(), None

    def pre_optim_steps(self, ctx: TrainerContext) -> None:
        """Note the start of the update."""
        self._begin_time = time.perf_counter()

    def post_steps(self, ctx: TrainerContext) -> None:
        """Count the update and the collection before it, and log if that is due."""
        if self._begin_time is not None:
            self.state.update += time.perf_counter() - self._begin_time
            self._begin_time = None
        if ctx.collect_stats is not None:
            self.state.collect += ctx.collect_stats.collect_time
        if ctx.crossed(self.every):
            self._count_total()
            times = {name: getattr(self.state, name) for name in ("collect", "update", "test")}
            # At least 0: a collector in another process overlaps with the update.
            times["other"] = max(self.state.total - sum(times.values()), 0.0)
            ctx.log({f"time_{name}": seconds for name, seconds in times.items()})
            self.state = Seconds()

    def test_log(self, ctx: TrainerContext, stats: CollectStats) -> None:
        """Count a test step."""
        self.state.test += stats.collect_time

    def state_dict(self) -> State:
        """Return the seconds since the last log."""
        self._count_total()
        return super().state_dict()

    def _count_total(self) -> None:
        if self._last_time is not None:
            now = time.perf_counter()
            self.state.total, self._last_time = self.state.total + now - self._last_time, now


class ClearCudaCache(TrainerHook):
    """Returns PyTorch's unused memory to the GPU, at the end of a training step.

    It helps if other programs need the GPU's memory, or if blocks of many sizes leave gaps. PyTorch then takes
    the memory again, which costs time. Without CUDA it does nothing.
    """

    def __init__(self, every: int | Every = 100) -> None:
        self.every: Every = as_every("ClearCudaCache", every)

    def post_steps(self, ctx: TrainerContext) -> None:
        """Empty the cache, if that is due."""
        if ctx.crossed(self.every) and torch.cuda.is_available():
            torch.cuda.empty_cache()


class SystemStats(TrainerHook):
    """Logs the load of processor, memory and GPUs, which a thread measures until the run ends.

    `cpu_percent`, `memory_percent` and `process_memory_gb` come from `/proc`, or else from psutil; without
    both, the start of a run is a `MissingExtraError`. `gpu0_percent`, `gpu0_memory_gb` and `gpu0_temperature` come, for
    each GPU, from `nvidia-smi`, if it is there.

    Args:
        cpu_every: an `Every` in seconds between measurements of processor and memory.
        gpu_every: the same for the GPUs.
        cpu_once: measure processor and memory only once, after the first interval.
        gpu_once: the same for the GPUs.
    """

    def __init__(
        self,
        cpu_every: Every = Every(1, "second"),
        gpu_every: Every = Every(10, "second"),
        *,
        cpu_once: bool = False,
        gpu_once: bool = False,
    ) -> None:
        owner = "SystemStats"
        self.cpu_every: Every = checked(owner, "cpu_every", cpu_every, EverySeconds)
        self.gpu_every: Every = checked(owner, "gpu_every", gpu_every, EverySeconds)
        self.cpu_once = checked(owner, "cpu_once", cpu_once, Flag)
        self.gpu_once = checked(owner, "gpu_once", gpu_once, Flag)
        self._thread: threading.Thread | None = None
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._gathered: list[Part] = []

    def setup(self, ctx: TrainerContext) -> None:
        """Start the thread."""
        cpu, gpu = (self.cpu_every.n, CpuProbe(), self.cpu_once), (self.gpu_every.n, GpuProbe(), self.gpu_once)
        self._stop.clear()
        self._gathered = []
        name = "rltrainer-system-stats"
        self._thread = threading.Thread(target=self._measure, args=(cpu, gpu), name=name, daemon=True)
        self._thread.start()

    def post_steps(self, ctx: TrainerContext) -> None:
        """Log the means of all measurements since the last training step."""
        if self._gathered:  # most often empty: many training steps fit between two measurements
            with self._lock:
                gathered, self._gathered = self._gathered, []
            ctx.log(floats(merge(gathered).values))

    def shutdown(self, ctx: TrainerContext) -> None:
        """End the thread, and wait for its end: at most a measurement's time."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(timeout=10)
            self._thread = None

    def _measure(self, *probes: tuple[float, Callable[[], dict[str, float]], bool]) -> None:
        # Each probe: the seconds between two measurements, the measurement, and whether there is only one.
        due = {probe: time.monotonic() + probe[0] for probe in probes}
        while due:
            probe = min(due, key=due.__getitem__)
            if self._stop.wait(max(due.pop(probe) - time.monotonic(), 0)):
                return
            seconds, measure, is_last = probe
            try:
                measured = measure()
            except Exception as error:  # a driver that is gone must not end training
                text = "SystemStats: a measurement failed and is left out from now on (%s: %s)"
                logging.getLogger("rltrainer").warning(text, type(error).__name__, error)
                measured, is_last = {}, True
            if measured:
                with self._lock:
                    gather(self._gathered, Part(dict(measured)), merge)
            if not is_last:
                due[probe] = time.monotonic() + seconds


class CpuProbe:
    """Measures processor and memory, from `/proc`, or else from psutil; without both it is a `MissingExtraError`.

    `cpu_percent` covers all cores since the last measurement, `memory_percent` the machine, `process_memory_gb` this
    process.
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
        """Return the busy and the total time of all cores, in seconds or ticks."""
        if self._psutil is not None:
            times = self._psutil.cpu_times()
            return sum(times) - times.idle - getattr(times, "iowait", 0.0), sum(times)
        # user nice system idle iowait irq softirq steal; the first two include the rest of the line.
        ticks = [float(text) for text in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)

    def _memory(self) -> tuple[float, float]:
        if self._psutil is not None:
            return self._psutil.virtual_memory().percent / 100, self._psutil.Process().memory_info().rss
        lines = (line.split() for line in (PROC / "meminfo").read_text().splitlines())
        sizes = {fields[0]: float(fields[1]) for fields in lines}
        held = int((PROC / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 1 - sizes["MemAvailable:"] / sizes["MemTotal:"], held


class GpuProbe:
    """Measures `gpu0_percent`, `gpu0_memory_gb` and `gpu0_temperature` of each GPU that `nvidia-smi` reports.

    Without `nvidia-smi` it measures nothing; numbers that a GPU does not report are left out.
    """

    def __init__(self) -> None:
        self._program = shutil.which("nvidia-smi")

    def __call__(self) -> dict[str, float]:
        """Return the measurements, after some tenths of a second."""
        if self._program is None:
            return {}
        command = [self._program, f"--query-gpu=index,{','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True, stdin=subprocess.DEVNULL)
        values = {}
        # A line is like `0, 35, 1024, 61`; a number that the driver does not know is `[N/A]`.
        for index, *fields in (line.split(", ") for line in run.stdout.strip().splitlines()):
            for name, field in zip(GPU_FIELDS.values(), fields, strict=True):
                if field.replace(".", "", 1).isdecimal():
                    values[f"gpu{index}_{name}"] = float(field) * (MIB_IN_GB if name == "memory_gb" else 1)
        return values
