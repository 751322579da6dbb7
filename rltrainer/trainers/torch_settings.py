"""PyTorch's settings during a run: its threads, its flags, which are restored afterwards, and its profiler."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self, cast

import torch

from rltrainer.execution.compiler import tracing_gradients
from rltrainer.loggers.file_logger import NumberedPath
from rltrainer.nets.linear import Library, large_products_by
from rltrainer.plan import ProfilerParams, RuntimeParams
from rltrainer.processes.worker import num_cores

_LOG = logging.getLogger("rltrainer")
# Values of CUBLAS_WORKSPACE_CONFIG with which cuBLAS gives the same bits each time.
WORKSPACES = (":4096:8", ":16:8")


@contextlib.contextmanager
def running_as(
    chosen: RuntimeParams, asked: RuntimeParams, tf32: bool | None = None, is_first_here: bool = True
) -> Iterator[None]:
    """Compute inside as a run: `chosen` are its `RuntimeParams` with a value for each "auto", `asked` the user's.

    All threads but the first one of a process take only the setting that is a thread's own.
    """
    count, before = cast(int | None, chosen.num_threads), torch.get_num_threads()
    if count is None or (count > before and asked.num_threads == "auto"):
        count = before
    if not is_first_here:
        torch.set_num_threads(count)
        yield
        return
    with contextlib.ExitStack() as restored:
        if count != before:
            restored.callback(torch.set_num_threads, before)
            torch.set_num_threads(count)
        restored.enter_context(large_products_by(cast(Library, chosen.matrix_library)))
        if asked.deterministic:
            cudnn, is_on = torch.backends.cudnn, torch.are_deterministic_algorithms_enabled()
            only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
            restored.callback(torch.use_deterministic_algorithms, is_on, warn_only=only_warns)
            torch.use_deterministic_algorithms(True)  # of the compiler's kernels too, which are chosen by measuring
            for name, value in (("deterministic", True), ("benchmark", False)):
                restored.callback(setattr, cudnn, name, getattr(cudnn, name))
                setattr(cudnn, name, value)
        if tf32 is not None:
            restored.enter_context(_tf32(tf32))
        if chosen.compile is True:
            restored.enter_context(tracing_gradients())
        if asked.detect_anomaly:
            restored.enter_context(torch.autograd.set_detect_anomaly(True))
        yield


@contextlib.contextmanager
def _tf32(is_allowed: bool) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, cast(Any, torch.backends.cudnn)  # torch types only the older flags
    before = matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    # PyTorch has an older flag beside, refuses to read it where the two differ, and reads it itself when it compiles.
    matmul.allow_tf32 = cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before[0] == "tf32", before[1] == "tf32"
        matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = before


def check_deterministic(runtime: RuntimeParams, device: torch.device) -> None:
    """Raise a `ParamsError` if `RuntimeParams.deterministic` needs an environment variable, which cuBLAS reads once."""
    if runtime.deterministic and device.type == "cuda" and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in WORKSPACES:
        rule = f"needs the environment variable CUBLAS_WORKSPACE_CONFIG={WORKSPACES[0]} for networks on {device}"
        runtime.raise_invalid("deterministic", rule, "Set it before the program starts.")


# Parameters times batch size that keep one thread busy; with less each, threads wait longer than they compute. SAC
# with 256-256 networks and batches of 256 gets two, with which it was 1.4 times as fast on two free cores.
WORK_PER_THREAD = 25_000_000


def choose_num_threads(choice: str | int | None, chosen: str | int | None, work: int) -> int | None:
    """Return the number of threads, None to leave it as it is; `chosen` is the number of a run that is resumed.

    `work` is the number of trained parameters times the samples of a gradient step.
    """
    if choice != "auto":
        return choice  # type: ignore[return-value]  # the params have checked it
    limit = torch.get_num_threads()  # by `torch.set_num_threads` or OMP_NUM_THREADS
    if not isinstance(chosen, int):
        return max(1, min(work // WORK_PER_THREAD, num_cores(), limit))
    if chosen > limit:
        text = f"the run was saved with {chosen} torch threads and continues with the {limit} that are set"
        _LOG.warning("num_threads='auto': %s; sums may round differently", text)
    return min(chosen, limit)


# Rows of the profiler's table.
NUM_OPERATORS = 50


class RunProfiler:
    """Counts training steps and records some of them, within one epoch; `params` None records nothing.

    A context of an epoch; `step` ends a training step. A recording that an exception ends is written too.
    """

    def __init__(self, params: ProfilerParams | None) -> None:
        self._params = params or ProfilerParams()
        self._num_waited = self._num_steps = 0
        self._is_done = params is None
        self._profile: Any = None

    def __enter__(self) -> Self:
        self._start_if_due()
        return self

    def step(self) -> None:
        """Note the end of a training step."""
        if self._profile is None:
            self._num_waited += 1
            self._start_if_due()
            return
        self._num_steps += 1
        if self._num_steps == self._params.warmup + self._params.active:
            self._stop()
        else:
            self._profile.step()

    def __exit__(self, *exception: object) -> None:
        if self._profile is not None:
            self._stop()

    def _start_if_due(self) -> None:
        if self._is_done or self._num_waited < self._params.wait:
            return
        from torch.profiler import profile, schedule  # tenths of a second, which most runs need not take

        steps = schedule(wait=0, warmup=self._params.warmup, active=self._params.active, repeat=1)
        # One cycle; its events are kept either way. Without `acc_events` PyTorch 2.11 warns that it clears them.
        self._profile, self._num_steps = profile(schedule=steps, acc_events=True), 0
        self._profile.start()

    def _stop(self) -> None:
        profile, self._profile = self._profile, None
        profile.stop()
        self._is_done = self._num_steps > self._params.warmup
        if self._is_done:
            try:
                self._write(profile)
            except OSError as error:  # a full disk does not end the training
                warnings.warn(f"RuntimeParams.profiler: could not write ({error})", RuntimeWarning, stacklevel=3)
        elif self._num_steps:
            text = "the epoch ended within the %d training steps of warm-up; they begin again with the next"
            _LOG.warning(f"RuntimeParams.profiler: {text}", self._params.warmup)

    def _write(self, profile: Any) -> None:
        folder = NumberedPath(Path(self._params.folder), "").claim()
        profile.export_chrome_trace(str(folder / "trace.json"))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        table = profile.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=NUM_OPERATORS)
        (folder / "operators.txt").write_text(table + "\n")
        _LOG.info("RuntimeParams.profiler: wrote %s", folder)
